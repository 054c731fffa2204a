"""The script that measures a GPU: stages that fail, are late or are killed; tables, floors of all kernels."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
from test_cuda_compile import needs_nvcc, nvcc

from dpmix.kernels import build

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

STAGES = {  # scripts of stages
    "good": "output.add('number', 1)",
    "bad": "output.add('number', 2); sys.exit('reason of the failure')",
    "slow": "output.add('number', 3); time.sleep(60)",
    "patient": """
for i in output.while_time_is_left(range(100)):
    output.append('rows', {'i': i})
    time.sleep(0.4)
""",
    "absent": "print('no such tool'); sys.exit(3)",
    "gpu_device": "",
    "gpu_page": "open(sys.argv[1][:-4] + 'md', 'w').write('a page'); print('the tables so far', flush=True)",
}
START = """
import sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from gpu_output import Output, parser
output = Output(parser(None).parse_args())
"""
DEVICE = """
import json
print(json.dumps({'device': 'one', 'driver': '1', 'nvcc': '13.0', 'versions': {}}))
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with other stages, in an empty folder."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    for name, body in STAGES.items():
        start = "import sys\n" if name == "gpu_page" else START.format(benchmarks=str(BENCHMARKS))
        (tmp_path / f"{name}.py").write_text(DEVICE if name == "gpu_device" else start + body)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    seconds = {"good": 30, "bad": 30, "slow": 2, "patient": 2, "absent": 30}
    stages = tuple(gpu.Stage(name, f"{name}.py", each, "") for name, each in seconds.items())
    monkeypatch.setattr(gpu, "STAGES", stages)
    return gpu


def run(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict]:
    output = gpu.ROOT / "out"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(output), *arguments])
    code = gpu.main()
    return code, json.loads((output / "gpu.json").read_text())


def test_a_stage_that_fails_or_takes_too_long_does_not_stop_the_others(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, record = run(gpu, monkeypatch, "--within", "120")
    assert code == 1
    said = capfd.readouterr().out.split("gpu: ")  # the tables are printed after each stage
    assert [text.endswith("the tables so far\n") for text in said[2:-1]] == [False, True] * 5
    stages = {name: (stage["status"], stage["reason"]) for name, stage in record["stages"].items()}
    assert stages == {
        "good": ("done", ""),
        "bad": ("failed", "reason of the failure"),
        "slow": ("stopped", "stopped after 4 s"),
        "patient": ("done", ""),
        "absent": ("skipped", "no such tool"),
    }
    kept = {name: stage["results"] for name, stage in record["stages"].items()}
    patient = kept.pop("patient")
    assert kept == {"good": {"number": 1}, "bad": {"number": 2}, "slow": {"number": 3}, "absent": {}}
    assert len(patient["rows"]) + patient["left_out"] == 100
    assert 2 <= len(patient["rows"]) <= 6
    assert sorted(path.name for path in (gpu.ROOT / "out").iterdir()) == ["gpu.json", "gpu.md", "log.txt"]


def test_stages_end_in_the_time_that_there_is(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [gpu.Stage("slow", "slow.py", 30, ""), gpu.Stage("good", "good.py", 5, "")]
    monkeypatch.setattr(gpu, "STAGES", tuple(stages))
    began = time.monotonic()
    _, record = run(gpu, monkeypatch, "--within", "6")
    assert time.monotonic() - began < 20
    assert {name: stage["status"] for name, stage in record["stages"].items()} == {"slow": "stopped"}
    assert "no time left for good" in capsys.readouterr().out


def test_stages_can_be_chosen(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code, record = run(gpu, monkeypatch, "--stage", "absent", "good")
    assert (code, list(record["stages"])) == (0, ["good", "absent"])
    (gpu.HERE / "gpu_device.py").write_text("import sys; sys.exit('no CUDA device')")
    with pytest.raises(SystemExit, match=r"^gpu: no CUDA device$"):
        run(gpu, monkeypatch)


def test_a_device_that_does_not_answer_ends_the_run(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (gpu.HERE / "gpu_device.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(gpu, "PATIENCE", 1)
    with pytest.raises(SystemExit, match=r"^gpu: the device does not answer within 1 s$"):
        run(gpu, monkeypatch)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_measured_is_lost_when_the_run_is_killed(gpu: ModuleType, tmp_path: Path, seed: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import gpu; from pathlib import Path\n"
        f"gpu.HERE = gpu.ROOT = Path({str(tmp_path)!r})\n"
        "gpu.STAGES = tuple(gpu.Stage(f'p{i}', 'patient.py', 1, '') for i in range(20))\n"
        "sys.exit(gpu.main())\n"
    )
    command = [sys.executable, str(program), "--output", str(tmp_path / "out"), "--within", "100"]
    with (tmp_path / "printed.txt").open("w") as lines:
        process = subprocess.Popen(command, stdout=lines, stderr=subprocess.STDOUT)
        log, wanted = tmp_path / "out" / "log.txt", seed * 2 // 3  # rows; then at any moment
        while process.poll() is None and (log.read_text().count("\ni ") if log.exists() else -1) < wanted:
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    printed = log.read_text()
    record = json.loads(path.read_text()) if (path := tmp_path / "out" / "gpu.json").exists() else {}
    rows = [row for stage in record.get("stages", {}).values() for row in stage["results"].get("rows", [])]
    assert len(rows) >= printed.count("\ni ")  # a row is printed once it is in the record
    before = after = path.read_bytes() if path.exists() else b""
    for _ in range(20):  # on a busy machine the stage takes a while to see that the run is gone
        last = after
        time.sleep(0.5)
        after = path.read_bytes() if path.exists() else b""
        if after == last:
            break
    else:
        pytest.fail("the stage has not ended with the run")
    assert len(after) >= len(before)


def test_a_stage_that_still_starts_ends_with_the_run(gpu: ModuleType, tmp_path: Path) -> None:
    """Its imports take seconds, in which it does not yet see whether the run is there."""
    marker, program = tmp_path / "marker", tmp_path / "program.py"
    (tmp_path / "late.py").write_text(
        "import os, time\nprint('starts', os.getpid(), flush=True)\ntime.sleep(1.0)\n"
        + START.format(benchmarks=str(BENCHMARKS))
        + f"time.sleep(1.0)\nPath({str(marker)!r}).touch()\n"
    )
    program.write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import gpu; from pathlib import Path\n"
        f"gpu.HERE = gpu.ROOT = Path({str(tmp_path)!r})\n"
        "gpu.STAGES = (gpu.Stage('late', 'late.py', 9, ''),)\n"
        "sys.exit(gpu.main())\n"
    )
    command, log = [sys.executable, str(program), "--output", str(tmp_path)], tmp_path / "log.txt"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (log.exists() and re.search(r"starts \d+\n", log.read_text())):
        time.sleep(0.01)
    (stage,) = re.findall(r"starts (\d+)\n", log.read_text())
    process.kill()
    process.wait()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(stage)).wait(30.0)
    assert not marker.exists()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], dict[str, float]]:
    """A run of the real schedule within 560 s by a clock of its own: when each stage that is done ends."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    def simulate(slowness: float) -> dict[str, float]:
        """Every stage takes its seconds times the slowness; the device is described in 5 s."""
        now, seconds, ends = [0.0], {stage.name: stage.seconds for stage in gpu.STAGES}, {}

        def described(*_: object, **__: object) -> dict:
            now[0] += 5.0
            return {}

        def finish(command: list[str], _: object, limit: float, __: object) -> int | None:
            name = command[command.index("--name") + 1]
            took = slowness * seconds[name]
            now[0] += min(took, limit)
            if took > limit:
                return None
            ends[name] = now[0]
            return 0

        monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(gpu, "described", described)
        monkeypatch.setattr(gpu, "finish", finish)
        monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: None)  # of the page
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--within", "560", "--output", str(tmp_path)])
        gpu.main()
        assert now[0] <= 560
        return ends

    return simulate


def test_every_stage_has_its_time_and_the_most_valuable_end_early_at_half_the_speed(
    simulated: Callable[[float], dict[str, float]],
) -> None:
    import gpu

    names = [stage.name for stage in gpu.STAGES]
    assert names[:6] == ["build", "right", "headline", "limits", "peers", "kernels"]
    ends = simulated(1.0)
    assert list(ends) == names
    assert ends["kernels"] <= 130
    ends = simulated(2.0)
    assert list(ends) == names[: len(ends)]
    assert ends["peers"] < 240
    assert ends["sanitizer"] < 560  # memory safety, too
    assert all((BENCHMARKS / stage.script).exists() for stage in gpu.STAGES)


@needs_nvcc
def test_the_kernels_of_the_stages_compile(tmp_path: Path) -> None:
    for source in BENCHMARKS.glob("*.cu"):
        command = [str(nvcc()), *build.OPTIONS, "-arch=sm_90", "-Werror", "all-warnings", "--cubin"]
        subprocess.run([*command, str(source), "-o", str(tmp_path / "made.cubin")], check=True)


# ---- Floors and tables


def test_every_kernel_has_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_floors

    names = {name for path in build.FOLDER.glob("*.cu") for name in kernels_of(path)}
    assert names == set(gpu_floors.KERNELS)
    shape = gpu_floors.Shape(1_000_000, 14, 256, 20, 3.0, 0.5)
    rates = dict.fromkeys(gpu_floors.UNITS.values(), 1e12)
    assert all(gpu_floors.floor(name, shape, rates).milliseconds > 0 for name in names)
    assert gpu_floors.floor("draw_labels", shape, rates | {"copy_bytes_per_second": None}) is None
    # The dense floor of the H200 in the issue of the CUDA engine: 132 multiprocessors, 128 lanes, 1.98 GHz.
    rates["multiply_add_per_second"] = 132 * 128 * 1.98e9
    found = gpu_floors.floor("draw_labels", shape, rates)
    assert found.milliseconds == pytest.approx(1.02, abs=0.01)


def test_the_end_of_an_output_has_the_most_valuable_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_page

    committed = gpu_page.committed()
    said = gpu_page.summary(committed)
    assert len(said) < 10_000  # of 12,000 characters that may be kept
    for table in (gpu_page.stages, gpu_page.checks, gpu_page.limits, gpu_page.sweeps, gpu_page.peers):
        assert table(committed) in said
    assert "| draw_sorted | 14 | mix | 1,000,000 |" in said
    assert "| draw_sorted | 14 | dp | 1,000,000 |" not in said
    assert "## Kernels\n\nNot measured yet.\n" in gpu_page.summary({"stages": {}})


def kernels_of(path: Path) -> list[str]:
    from cuda_on_cpu import nvcc

    return list(nvcc.kernels_of(path.read_text()))


RATES = {
    "copy_bytes_per_second": 4e12,
    "multiply_add_per_second": 3e13,
    "multiply_add_double_per_second": 3e13,
    "exponential_per_second": 4e12,
    "load_shared_per_second": 1e12,
}
ROW = {
    "kernel": "draw_labels", "kind": "mix", "n_events": 1_000_000, "n_channels": 14, "n_components": 256,
    "n_populations": 20, "weighted": 3.0, "in_pairs": 0.5, "milliseconds": 2.0,
}  # fmt: skip


def test_tables_say_what_was_not_measured_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_page

    empty = gpu_page.page({"stages": {}})
    assert empty.count("Not measured yet.") == len(gpu_page.SECTIONS)
    done = {"status": "done", "reason": "", "seconds": 1}
    stages = {
        "limits": done | {"results": RATES},
        "kernels": done | {"results": {"kernels": [ROW]}, "status": "stopped"},
        "peers": done | {"results": None, "status": "skipped", "reason": "no PyTorch"},
    }
    record = {"stages": stages}
    assert (
        "| draw_labels | 14 | mix | 1,000,000 | 256 | 2.000 | 1.135 | 57% | float32 (model) |"
        in gpu_page.kernels(record)
    )
    assert gpu_page.peers(record) == "Not measured: no PyTorch.\n"
    launch = {"kernel": "draw_labels", "kind": "mix", "n_channels": 14, "limiter": "float32", "float32": 71.3}
    stages["counters"] = stages["kernels"] | {"results": {"launches": [launch]}}
    assert gpu_page.kernels(record).splitlines()[2].endswith("| 57% | float32 71% |")


SANITIZER = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
[ "$2" = racecheck ] || { echo "========= ERROR SUMMARY: 0 errors"; exit 0; }
echo "========= Error: Race reported"
echo "========= RACECHECK SUMMARY: 1 hazard displayed"
exit 86
"""


@pytest.mark.usefixtures("emulated_devices")
def test_findings_of_the_sanitizer_fail_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_sanitizer

    tool, output = tmp_path / "compute-sanitizer", tmp_path / "part.json"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    output.write_text('{"stages": {}}')
    options = ["--output", str(output), "--name", "sanitizer", "--seconds", "60"]
    monkeypatch.setattr(sys, "argv", ["gpu_sanitizer.py", *options])
    with pytest.raises(SystemExit, match=r"^racecheck: 1 hazard displayed$"):
        gpu_sanitizer.main()
    found = json.loads(output.read_text())["stages"]["sanitizer"]["results"]
    assert {name: one["clean"] for name, one in found.items()} == {
        "memcheck": True,
        "racecheck": False,
        "synccheck": True,
    }
    assert found["racecheck"]["first"] == "========= Error: Race reported"


CARD = """// draw_labels: text
// Budget    draw_labels, D = 14: registers 168; no spills.
// Limits    D 1 to 64.
"""


def test_cards_state_measured_times_or_that_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_cards

    empty = gpu_cards.card(CARD, {}, {"stages": {}})
    with_registers = gpu_cards.card(empty, {"draw_labels": "sm_80 162, sm_90 168"}, {"stages": {}})
    assert with_registers.splitlines()[2] == "//           registers by architecture: sm_80 162, sm_90 168."
    assert gpu_cards.stated(with_registers) == {"draw_labels": "sm_80 162, sm_90 168"}
    assert empty.splitlines()[2:] == ["// Measured  draw_labels: not measured.", "// Limits    D 1 to 64."]
    assert gpu_cards.card(empty, gpu_cards.stated(empty), {"stages": {}}) == empty
    stages = {"limits": {"results": RATES}, "kernels": {"results": {"kernels": [ROW]}}}
    line = gpu_cards.card(
        empty, gpu_cards.stated(empty), {"stages": stages, "about": {"device": "H200"}}
    ).splitlines()[2]
    times = "2.000 ms for 1,000,000 events, 57% of the floor; limited by float32 (model)."
    assert line == f"// Measured  draw_labels, H200: {times}"


COUNTERS = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","draw_labels(const float *)","","gpu__time_duration.sum","us","1,530.5"
"0","1","draw_labels(float)","","sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active","%","81.2"
"0","1","draw_labels(const float *)","","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","12.1"
"0","1","draw_labels(const float *)","","sm__inst_issued.avg.pct_of_peak_sustained_active","%","95"
"1","1","accumulate(const float *)","","sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active","%","n/a"
"""


def test_counters_are_read_by_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_counters

    draw, accumulate = gpu_counters.rows(COUNTERS.splitlines())
    assert draw == {
        "kernel": "draw_labels", "nanoseconds": 1_530_500.0, "float32": 81.2, "memory": 12.1, "issue": 95.0,
    }  # fmt: skip
    assert gpu_counters.limiter(draw) == "float32"
    assert accumulate == {"kernel": "accumulate"}
    assert gpu_counters.limiter(accumulate) == ""
