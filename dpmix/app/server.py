"""The server of the page: a thin layer over `dpmix.app.workspace`, for one user of this machine.

It listens on the loopback interface only. The address contains a random token. A request needs this token,
the server's own name as Host and, if it is not GET, as Origin. So neither other users of the machine nor
other pages in the browser can use it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError, validate_call
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from dpmix.app import page
from dpmix.app.incoming import MOST_BYTES as MOST_FILE_BYTES
from dpmix.app.incoming import Incoming
from dpmix.app.workspace import StaleError, Workspace
from dpmix.errors import ConfigError, DpmixError, printable
from dpmix.populations.tree.decisions import problems_of
from dpmix.system.stop import ending_signals

log = logging.getLogger("dpmix")

HOST = "127.0.0.1"
MOST_BYTES = 1_000_000  # of a request other than a dropped file
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'"
)
ACTIONS = (
    *(
        "files",
        "judge_recording",
        "channels",
        "look",
        "pair",
        "grid",
        "fit",
        "estimate",
        "resume",
        "progress",
        "runs",
        "open",
    ),
    *(
        "view",
        "preview",
        "act",
        "undo",
        "count",
        "verdict",
        "workspaces",
        "compare",
        "judged",
        "candidates",
        "judge",
        "unjudge",
    ),
    *("point_values", "point_populations", "point_found"),
    *("types", "load_types", "edit_types", "add_type"),
    *("profiles", "export", "commands", "stop"),
)
"""Methods of `Workspace` that the page may call."""


class _Handler(RequestHandler):
    """Checks of every request, and errors in one line."""

    workspace: Workspace
    pool: ThreadPoolExecutor
    token: str
    name: str

    def initialize(self, **shared: Any) -> None:
        self.__dict__ |= shared

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        given = self.path_args[0] if self.path_args else ""
        # The host, because the page of another site whose name is made to point to this machine would count
        # as ours.
        if self.request.host != self.name or not hmac.compare_digest(given.encode(), self.token.encode()):
            raise HTTPError(403)
        # A browser sends requests from pages of other sites too, and says where they come from.
        if self.request.method != "GET" and self.request.headers.get("Origin") != f"http://{self.name}":
            raise HTTPError(403)

    def write_error(self, status_code: int, **details: Any) -> None:
        own = "the server met an error of its own, which its terminal shows; nothing was stored"
        text = own if status_code >= 500 else f"{status_code}: open the address that dpmix app has printed"
        self.finish(json.dumps({"result": {"error": text}}))

    async def answer(self, work: Callable[[], Any]) -> None:
        """Send the result of work in another thread, as JSON unless it is bytes, or its error in one line."""
        try:
            found = await self.run(work)
        except (DpmixError, ValueError) as error:
            self.set_status(409 if isinstance(error, StaleError) else 400)
            problems = error.problems if isinstance(error, ConfigError) else [str(error)]
            found = {"error": "; ".join(map(printable, problems))}
        if isinstance(found, bytes):
            self.set_header("Content-Type", "application/octet-stream")
            self.finish(found)
        else:
            self.finish(json.dumps({"result": found}, allow_nan=False))

    async def run(self, work: Callable[[], Any]) -> Any:
        """Return the result of work in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


class _Page(_Handler):
    def get(self, token: str) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page.html(self.workspace.folder))


class _File(_Handler):
    def get(self, token: str, name: str) -> None:
        if name not in page.FILES:
            raise HTTPError(404)
        self.set_header("Content-Type", page.FILES[name])
        self.finish(page.file(name))


class _Report(_Handler):
    """The page of `dpmix drift` about a data file: it runs no script and asks for nothing."""

    async def get(self, token: str) -> None:
        file = self.get_query_argument("file")
        try:
            text = await self.run(lambda: self.workspace.report(file))
        except DpmixError as error:
            raise HTTPError(404) from error
        self.set_header("Content-Security-Policy", REPORT_POLICY)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(text)


class _Values(_Handler):
    async def get(self, token: str) -> None:
        run = self.get_query_argument("run")
        await self.answer(lambda: self.workspace.values(run))


class _Action(_Handler):
    async def post(self, token: str, name: str) -> None:
        if name not in ACTIONS:
            raise HTTPError(404)
        body = self.request.body or b"{}"
        await self.answer(lambda: called(getattr(self.workspace, name), json.loads(body)))


@stream_request_body
class _Drop(_Handler):
    """A file for the folder, as the body of a request; it is never held in memory."""

    incoming: Incoming | None = None
    problem: DpmixError | None = None

    def prepare(self) -> None:
        super().prepare()
        if self.request.method != "POST":
            raise HTTPError(405)
        size = self.request.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > MOST_FILE_BYTES:
            raise HTTPError(413)
        cast(HTTP1Connection, self.request.connection).set_max_body_size(MOST_FILE_BYTES)
        try:
            self.incoming = self.workspace.receive(self.get_query_argument("name", "", strip=False))
        except DpmixError as error:
            self.problem = error  # sent when the body has been read

    async def data_received(self, chunk: bytes) -> None:
        if self.incoming is None or self.problem is not None:
            return
        one = self.incoming
        try:
            await self.run(lambda: one.write(chunk))
        except DpmixError as error:
            self.problem = error

    async def post(self, token: str) -> None:
        await self.answer(self.committed)

    def committed(self) -> str:
        if self.problem is not None:
            raise self.problem
        assert self.incoming is not None
        return self.incoming.commit()

    def on_finish(self) -> None:
        if self.incoming is not None:
            self.incoming.discard()

    # A request that breaks off within its body does not come to on_finish.
    def on_connection_close(self) -> None:
        self.on_finish()


def called(method: Callable[..., Any], given: Any) -> Any:
    """Call a method with the arguments of a request, which are checked by the types of the method.

    Raises
    ------
    ConfigError
        The method has other settings; one line per problem.
    """
    if not isinstance(given, dict):
        raise ConfigError(["need an object with the arguments of the action"])
    try:
        return validate_call(method)(**given)
    except ValidationError as error:
        raise ConfigError(problems_of(error, f"need the arguments of {method.__name__}")) from None


def application(workspace: Workspace, token: str, port: int) -> Application:
    """Return the web application."""
    shared = {
        "workspace": workspace,
        "pool": ThreadPoolExecutor(4),
        "token": token,
        "name": f"{HOST}:{port}",
    }
    routes: list[Any] = [
        (r"/([^/]+)/", _Page, shared),
        (r"/([^/]+)/file/([\w.-]+)", _File, shared),
        (r"/([^/]+)/values", _Values, shared),
        (r"/([^/]+)/report", _Report, shared),
        (r"/([^/]+)/do/(\w+)", _Action, shared),
        (r"/([^/]+)/drop", _Drop, shared),
        (r"/(.*)", _Handler, shared),
    ]
    return Application(routes, log_function=lambda handler: None)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback interface; port 0 is any free one.

    Raises
    ------
    ConfigError
        The port is taken.
    """
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((HOST, port))
    except OSError as error:
        one.close()
        raise ConfigError([f"--port {port}: cannot be used: {error.strerror}; give another port"]) from None
    one.listen(64)
    one.setblocking(False)
    return one


def serve(folder: Path, port: int, started: Callable[[str], None]) -> None:
    """Serve the page of a folder until the process is interrupted, asked to end, or its terminal is closed.

    Commands that wait do not start any more, and those that run are asked to stop.

    Parameters
    ----------
    folder : Path
    port : int
        0 for any free one.
    started : callable
        Called with the address once the server listens.

    Raises
    ------
    ConfigError
        The folder or the port cannot be used.
    """
    workspace = Workspace(folder)
    listening = listen(port)
    number, token = listening.getsockname()[1], secrets.token_urlsafe(24)

    async def run() -> int:
        server = HTTPServer(application(workspace, token, number), max_buffer_size=MOST_BYTES)
        server.add_sockets([listening])
        started(f"http://{HOST}:{number}/{token}/")
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def end(by: int) -> None:
            if not ended.done():
                ended.set_result(by)

        for one in ending_signals():
            loop.add_signal_handler(one, end, one)
        return await ended

    try:
        by = asyncio.run(run())
    finally:
        workspace.jobs.stop_all()
        workspace.release_devices()
    raise SystemExit(128 + by)
