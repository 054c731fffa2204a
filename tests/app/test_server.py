"""The server: who may ask, and what it answers."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from platforms import not_on
from quick_jobs import SERVER
from waiting import wait_until

from dpmix.cli import main
from dpmix.commands.drift import drift
from dpmix.runs.reader import open_run


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    token: str

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Return status, text and headers; a POST has the right Origin unless another is given."""
        own = {"Origin": f"http://127.0.0.1:{self.port}"} if method == "POST" else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = body if isinstance(body, str) else json.dumps(body)
        sent = {name: value for name, value in (own | headers).items() if value}
        connection.request(method, f"/{self.token if token is None else token}/{path}", text, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def start(folder: Path) -> Server:
    command = [sys.executable, "-c", SERVER, "app", str(folder), "--no-browser"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # Where the tests run in the background of a script, the shell has made them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    found = re.fullmatch(r"open http://127\.0\.0\.1:(\d+)/([\w-]{32})/\n", process.stdout.readline())
    assert found is not None
    return Server(process, int(found[1]), found[2])


@pytest.fixture(scope="module")
def server(study: Path) -> Iterator[Server]:
    one = start(study)
    yield one
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(30) == 130


def test_the_page_asks_no_other_machine(server: Server) -> None:
    status, text, headers = server.ask("GET", "")
    assert status == 200
    assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    for name in ("app.js", "populations.js", "plots.js", "files.js", "app.css", "bokeh.js"):
        assert f"file/{name}" in text
        assert server.ask("GET", f"file/{name}")[0] == 200
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text) == []
    assert server.ask("GET", "file/server.py")[0] == 404


@pytest.mark.parametrize(
    ("method", "headers", "token"),
    [
        ("GET", {}, "wrong"),
        ("GET", {"Host": "evil.example"}, None),
        ("GET", {"Host": "localhost:1"}, None),
        ("POST", {"Origin": ""}, None),
        ("POST", {"Origin": "http://evil.example"}, None),
        ("POST", {"Origin": "null"}, None),
        ("POST", {}, "wrong"),
    ],
)
def test_only_the_page_of_this_server_may_ask(
    server: Server, method: str, headers: dict[str, str], token: str | None
) -> None:
    for path in ("do/runs", "values?run=run.h5") if method == "POST" else ("", "values?run=run.h5"):
        assert server.ask(method, path, {}, token, **headers)[0] in (403, 405)


def test_actions(server: Server) -> None:
    status, text, _ = server.ask("POST", "do/runs", {})
    assert status == 200
    assert json.loads(text)["result"][0]["name"] == "run.h5"
    for name, body, problem in (
        ("open", {"run": "../x"}, "../x: lies outside"),
        ("open", {}, "run: missing required argument; need the arguments of open"),
        ("open", {"run": "run.h5", "x": 1}, "x: unexpected keyword argument"),
        ("view", {"run": 5}, "run: input should be a valid string"),
        ("open", "{", "Expecting property name"),
        ("open", [1], "need an object"),
    ):
        status, text, _ = server.ask("POST", f"do/{name}", body)
        assert status == 400
        assert problem in json.loads(text)["result"]["error"]
    for name in ("..%2Fx", "none.h5"):  # as an action answers, in one line
        status, text, _ = server.ask("GET", f"values?run={name}")
        assert status == 400
        assert json.loads(text)["result"]["error"].startswith(name.replace("%2F", "/"))
    assert server.ask("POST", "do/__init__", {})[0] == 404
    assert server.ask("POST", "do/inside", {"name": "x"})[0] == 404


def test_a_large_request_is_refused(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", f"/{server.token}/do/runs", None, {"Content-Length": "2000000"})
    assert connection.getresponse().status == 400


def test_a_dropped_file_is_copied_into_the_folder(tmp_path: Path) -> None:
    """Also one that is larger than any other request."""
    one = start(tmp_path)
    content = "a,b\n" + "1,2\n" * 600_000
    status, text, _ = one.ask("POST", "drop?name=my%20table.csv", content)
    assert (status, json.loads(text)["result"]) == (200, "my table.csv")
    assert (tmp_path / "my table.csv").read_text() == content
    for name, problem in (
        ("my%20table.csv", "my table.csv: exists already in the folder"),
        ("..%2Fa.csv", "need the name of a file, without folders"),
        ("a.exe", "dpmix does not read such files"),
        ("", "need the name of a file"),
    ):
        status, text, _ = one.ask("POST", f"drop?name={name}", content)
        assert status == 400
        assert problem in json.loads(text)["result"]["error"]
    given: list[dict[str, str]] = [{"Origin": ""}, {"Origin": "http://evil"}, {"Host": "evil.example"}]
    for own in given:
        assert one.ask("POST", "drop?name=b.csv", "x", **own)[0] == 403
    assert one.ask("POST", "drop?name=b.csv", "x", token="wrong")[0] == 403
    assert one.ask("GET", "drop?name=b.csv")[0] == 405
    assert one.ask("POST", "drop", "x")[0] == 400
    assert one.ask("POST", "do/receive", {"name": "b.csv"})[0] == 404
    assert os.listdir(tmp_path) == ["my table.csv"]

    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=20)  # ends in the middle
    connection.putrequest("POST", f"/{one.token}/drop?name=half.csv")
    connection.putheader("Origin", f"http://127.0.0.1:{one.port}")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"a,b\n")
    wait_until(lambda: len(os.listdir(tmp_path)) == 2, "the unfinished file")
    connection.close()
    wait_until(lambda: len(os.listdir(tmp_path)) == 1, "the removal of the unfinished file")
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=20)
    headers = {"Origin": f"http://127.0.0.1:{one.port}", "Content-Length": "5000000000"}
    connection.request("POST", f"/{one.token}/drop?name=large.csv", None, headers)
    assert connection.getresponse().status == 413
    assert os.listdir(tmp_path) == ["my table.csv"]
    one.process.terminate()
    one.process.wait(30)


@pytest.mark.slow
def test_a_killed_server_loses_nothing_and_another_tab_is_told(study: Path, server: Server) -> None:
    first = start(study)
    view = json.loads(first.ask("POST", "do/open", {"run": "run.h5"})[1])["result"]["view"]
    cut = {"run": "run.h5", "revision": view["revision"], "action": {"do": "cut", "populations": 3}}
    status, text, _ = first.ask("POST", "do/act", cut)
    assert status == 200
    first.process.kill()
    first.process.wait()
    shown = json.loads(server.ask("POST", "do/view", {"run": "run.h5"})[1])["result"]
    assert shown == json.loads(text)["result"]
    status, text, _ = server.ask("POST", "do/act", cut)  # from the tab of the killed server
    assert status == 409
    assert "changed elsewhere" in json.loads(text)["result"]["error"]


@not_on("windows", because="Windows has no such signals")
@pytest.mark.slow
def test_a_server_that_is_asked_to_end_stops_its_commands(study: Path, tmp_path: Path) -> None:
    """SIGHUP ends it like Ctrl-C: the run stops with its draws, and what waits does not start."""
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the server would ignore SIGHUP, too
    try:
        one = start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, ours)
    for run in ("first", "second"):
        status, text, _ = one.ask("POST", "do/fit", {"files": ["blood.fcs"], "name": run})
        assert status == 200, text
    wait_until((tmp_path / "first.h5").exists, "the run file of the first command")
    one.process.send_signal(signal.SIGHUP)
    assert one.process.wait(60) == 128 + signal.SIGHUP
    assert not (tmp_path / "second.yaml").exists()
    assert not open_run(tmp_path / "first.h5").complete


def test_the_report_on_a_recording(server: Server, study: Path) -> None:
    """It comes with a policy that runs no script; only the page of a data file in the folder is sent."""
    assert server.ask("GET", "report?file=blood.fcs")[0] == 404
    assert server.ask("GET", "report?file=..%2Fblood.fcs")[0] == 404
    folder = study / "drift" / "blood.fcs"
    drift([study / "blood.fcs"], folder)
    status, text, headers = server.ask("GET", "report?file=blood.fcs")
    assert status == 200
    assert "<h1>" in text
    assert "sandbox" in headers["Content-Security-Policy"]
    assert "script-src" not in headers["Content-Security-Policy"]
    assert server.ask("GET", "report?file=blood.fcs", token="wrong")[0] == 403
    shutil.rmtree(study / "drift")


def test_messages_of_the_command(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = CliRunner().invoke(main, ["app", str(tmp_path), "--port", str(server.port)])
    assert taken.exit_code == 2
    assert f"--port {server.port}: cannot be used: " in taken.output
    none = CliRunner().invoke(main, ["app", str(tmp_path / "none")])
    assert none.exit_code == 2
    assert "none: is not a folder" in none.output
    monkeypatch.setitem(sys.modules, "tornado", None)
    missing = CliRunner().invoke(main, ["app", str(tmp_path)])
    assert missing.exit_code == 2
    assert "dpmix app needs tornado" in missing.output
    assert "pip install 'dpmix-cytometry[app]'" in missing.output
