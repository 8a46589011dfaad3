"""The table of the GPU check: bounds, skipped rows, failures, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_check import check, cuda, facts, load, row, rows
from gpu_check.check import ROWS, Outcome, Report, Row, lacking, run_all, run_bounded
from gpu_check.machine import Machine, RowFailed
from support.real_daemon import eventually

_NO_GPU = {"error": "no NVIDIA driver: libcuda.so.1 is missing"}
_FACTS: dict[str, Any] = {"python": "3.12", "cpus": 2, "gpu": _NO_GPU, "torch": {"version": "2.11"}}


def test_each_row_of_the_table_has_a_function() -> None:
    assert {one.name for one in ROWS} == set(rows.ROW_FUNCTIONS)


def test_the_rows_end_within_eight_minutes_with_the_look_at_the_machine() -> None:
    assert check.TOTAL_S < 480


# ── what cannot run ──────────────────────────────────────────────────────────────────────────────


def test_a_row_is_skipped_for_the_first_thing_that_is_missing() -> None:
    needs_both = Row("r", 1, ("gpu", "torch"), "")
    assert lacking(needs_both, {"gpu": _NO_GPU, "torch": {"error": "no torch"}}) == _NO_GPU["error"]
    assert (
        lacking(needs_both, {"gpu": {"name": "H200"}, "torch": {"error": "no torch"}}) == "no torch"
    )
    assert lacking(needs_both, {"gpu": {"name": "H200"}, "torch": {"version": "2"}}) is None


def test_a_row_is_skipped_if_the_look_at_the_machine_ended_before_its_fact() -> None:
    assert lacking(Row("r", 1, ("torch",), ""), {}) == "unknown whether there is torch"


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (
            {"error": "ModuleNotFoundError: No module named 'torch'"},
            "ModuleNotFoundError: No module named 'torch'",
        ),
        (
            {"version": "2", "cuda": None, "available": False},
            "torch 2 cannot use a GPU: it was built without CUDA",
        ),
        (
            {"version": "2", "cuda": "11.8", "available": False},
            "torch 2 cannot use a GPU: it was built for CUDA 11.8 and finds no GPU",
        ),
        (
            {
                "version": "2",
                "cuda": "11.8",
                "available": False,
                "why": "no kernel image is available",
            },
            "torch 2 cannot use a GPU: no kernel image is available",
        ),
        ({"version": "2", "cuda": "13.0", "available": True}, None),
    ],
)
def test_why_torch_cannot_use_the_gpu(torch: dict[str, Any], expected: str | None) -> None:
    assert facts._torch_gpu(torch).get("error") == expected


def test_a_torch_without_code_for_this_gpu_is_found_by_using_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def zeros(*_: object, **__: object) -> object:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    torch = SimpleNamespace(
        __version__="2.1",
        version=SimpleNamespace(cuda="11.8"),
        cuda=SimpleNamespace(is_available=lambda: True),
        zeros=zeros,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "no kernel image" in facts._torch_gpu(facts._torch())["error"]


def test_a_library_that_cannot_be_loaded_hides_no_other_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(facts, "_torch", broken)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts.collect(tmp_path / "facts.json")
    found = json.loads((tmp_path / "facts.json").read_text())
    assert found["torch"] == {"error": "OSError: libcudart.so.13: cannot open shared object file"}
    assert found["torch_gpu"] == found["torch"]
    assert found["nvidia_smi"] == {"error": "nvidia-smi is not on PATH"}
    assert found["cpus"] >= 1


def test_a_machine_without_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("ctypes.CDLL", missing)
    cuda._driver.cache_clear()
    with pytest.raises(cuda.CudaError, match=r"^no NVIDIA driver: libcuda\.so\.1: cannot open"):
        cuda.device_count()


def test_a_folder_for_another_python_fails_the_setup_and_skips_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bundle.json").write_text(json.dumps({"python": "2.7", "glibc": [2, 35]}))
    monkeypatch.setattr(check, "FOLDER", tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert check.main(["--json", str(tmp_path / "out.json")]) == 1
    written = json.loads((tmp_path / "out.json").read_text())
    setup, *others = written["rows"]
    assert setup["result"] == "failed"
    assert "the folder is for Python 2.7" in setup["detail"]
    assert {(one["result"], one["detail"]) for one in others} == {
        ("skipped", "the row setup failed")
    }
    assert len(others) == len(ROWS)
    assert capsys.readouterr().out.endswith(f"0 passed, 1 failed, {len(ROWS)} skipped\n")


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_an_archive_that_is_damaged_or_missing_fails_the_setup(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    (tmp_path / "bundle.json").write_text(json.dumps({"python": version, "glibc": [2, 17]}))
    if content is not None:
        (tmp_path / "bundle.tar.xz").write_bytes(content)
    monkeypatch.setattr(check, "FOLDER", tmp_path)
    (tmp_path / "work").mkdir()
    report = Report(None)
    run_all(report, tmp_path / "work", [])
    assert [one.result for one in report.outcomes] == ["failed", *["skipped"] * len(ROWS)]


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--only", "server,gpu"])
    assert "no row is called gpu; there are server, devices" in capsys.readouterr().err


# ── rows that fail or hang ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPU, with torch."""

    def prepare(report: Report, work: Path) -> tuple[str | None, dict[str, str]]:
        report.facts = dict(_FACTS)
        return None, {}

    monkeypatch.setattr(check, "_prepare", prepare)


def test_a_failed_row_stops_no_other(
    prepared: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(one: Row, env: Mapping[str, str], work: Path, limit_s: float) -> Outcome:
        return Outcome(one.name, "failed", "broken")

    monkeypatch.setattr(check, "run_row", fails)
    report = Report(None)
    run_all(report, tmp_path, [])
    results = {one.row: one.result for one in report.outcomes}
    assert results == {
        "setup": "passed",
        **{one.name: "skipped" if "gpu" in one.needs else "failed" for one in ROWS},
    }


def test_no_row_begins_after_the_time_of_all_rows(
    prepared: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "TOTAL_S", 0.0)
    report = Report(None)
    run_all(report, tmp_path, ["server"])
    assert report.outcomes[1].result == "skipped"
    assert "no time left" in report.outcomes[1].detail


@pytest.mark.programs
def test_a_process_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    wait = subprocess.Popen.wait

    def exceed_limit(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        eventually(log.read_text, "it has started its child")
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", exceed_limit)
    text = "import subprocess, sys, time; c = subprocess.Popen(['sleep', '1000']); print(c.pid, flush=True); time.sleep(1000)"
    ended = run_bounded([sys.executable, "-c", text], dict(os.environ), log, 3.0)
    assert ended.code is None
    child = int(ended.log)
    eventually(lambda: not _runs(child), "the child of the killed process has exited")


def _runs(pid: int) -> bool:
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.programs
@pytest.mark.parametrize(
    ("text", "limit_s", "detail"),
    [
        ("import os; os.abort()", 60.0, "exited with -6"),
        ("import time; time.sleep(1000)", 2.0, "not finished after 2 s"),
    ],
)
def test_a_row_that_crashes_or_hangs_is_one_failed_line(
    text: str, limit_s: float, detail: str, tmp_path: Path
) -> None:
    package = tmp_path / "path" / "gpu_check"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "row.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    outcome = check.run_row(Row("server", 60, (), ""), env, tmp_path, limit_s)
    assert (outcome.result, outcome.detail) == ("failed", detail)


@pytest.mark.parametrize(
    ("error", "detail"),
    [(RowFailed("wrong result"), "wrong result"), (KeyError("x"), "KeyError: 'x'")],
)
def test_an_exception_fails_its_row_and_keeps_the_numbers(
    error: Exception, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(machine: Machine, numbers: dict[str, Any]) -> str:
        numbers["before"] = 1
        raise error

    (tmp_path / "facts.json").write_text(json.dumps(_FACTS))
    monkeypatch.setenv("GPU_CHECK_FACTS", str(tmp_path / "facts.json"))
    monkeypatch.setitem(rows.ROW_FUNCTIONS, "server", fails)
    row.main("server", tmp_path / "result.json")
    written = json.loads((tmp_path / "result.json").read_text())
    assert written == {"result": "failed", "detail": detail, "numbers": {"before": 1}}


# ── the report ───────────────────────────────────────────────────────────────────────────────────


def test_each_outcome_is_one_line_and_in_the_file_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(tmp_path / "out.json")
    report.add(
        Outcome("server", "failed", "first line\nsecond line", 1.23, {"start_s": 1}, "the log")
    )
    (one,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert one == {
        "row": "server", "title": "server and frontend start", "result": "failed",
        "detail": "first line\nsecond line", "took_s": 1.23, "numbers": {"start_s": 1}, "log": "the log",
    }  # fmt: skip
    assert capsys.readouterr().out == "server         failed      1.2 s  first line second line\n"
    assert report.summary() == "0 passed, 1 failed, 0 skipped"


# ── the load ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.programs
def test_clients_in_several_processes_count_answers_and_report_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if self.path == "/infer" else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    monkeypatch.setenv("PYTHONPATH", str(Path(load.__file__).parents[1]))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    (tmp_path / "body").write_bytes(b"x" * 1000)
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        measured = load.measure(f"{url}/infer", tmp_path / "body", 3, 0.5)
        with pytest.raises(RuntimeError, match="500"):
            load.measure(f"{url}/wrong", tmp_path / "body", 3, 0.5)
        server.shutdown()
    assert measured["per_s"] > 0
    assert 0 < measured["p50_ms"] <= measured["p99_ms"]
