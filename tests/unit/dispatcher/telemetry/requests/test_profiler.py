"""Profiles of workers: py-spy is run, and obstacles are reported."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.requests import profiler
from pytriton.dispatcher.telemetry.requests.profiler import Profiler, choose_worker

ASKED = messages.ProfileWorker("m", 1)


def worker(instance: int = 0, *, alive: bool = True) -> Any:
    return SimpleNamespace(instance=instance, alive=alive, pid=4711, name=f"w{instance}")


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a fake py-spy: a script that gets its arguments."""

    def make(body: str) -> None:
        program = tmp_path / "py-spy"
        program.write_text(f"#!{sys.executable}\nimport sys\nfile = sys.argv[-1]\n{body}\n")
        program.chmod(0o700)
        monkeypatch.setattr(profiler, "_program", lambda: str(program))

    return make


def profiled(
    folder: Path, of: Any = None, asked: messages.ProfileWorker = ASKED
) -> messages.Profiled:
    return asyncio.run(Profiler(folder).profile(of or worker(), asked))


def refused(folder: Path, of: Any = None, asked: messages.ProfileWorker = ASKED) -> str:
    with pytest.raises(RemoteFailure) as error:
        profiled(folder, of, asked)
    assert [one for one in os.listdir(folder) if one.startswith("profile")] == []
    return error.value.text


def test_the_stacks_are_returned(tmp_path: Path, py_spy: Any) -> None:
    py_spy("assert sys.argv[1:4] == ['record', '--pid', '4711']; open(file, 'w').write('a;b 3\\n')")
    assert profiled(tmp_path) == messages.Profiled(0, "w0", 4711, 1.0, 100, "a;b 3\n")
    assert os.listdir(tmp_path) == ["py-spy"]


def test_of_too_many_stacks_the_most_frequent_are_returned(
    tmp_path: Path, py_spy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy("open(file, 'w').write('rare 1\\ncommon 9\\nusual 5\\n')")
    monkeypatch.setattr(profiler, "_MAX_BYTES", 17)
    reported = profiled(tmp_path)
    assert (reported.stacks, reported.left_out) == ("common 9\nusual 5", 1)


def test_a_huge_file_is_truncated_to_whole_lines(
    tmp_path: Path, py_spy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy("open(file, 'w').write('a 1\\nb 2\\nc 3\\n')")
    monkeypatch.setattr(profiler, "_MAX_READ", 10)
    assert profiled(tmp_path).stacks == "a 1\nb 2\n"
    monkeypatch.setattr(profiler, "_MAX_READ", 12)
    assert profiled(tmp_path).stacks == "a 1\nb 2\nc 3\n"


def test_a_cancelled_profile_leaves_no_process_and_no_file(tmp_path: Path, py_spy: Any) -> None:
    begun, seen = tmp_path / "begun", []
    os.mkfifo(begun)
    py_spy(f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)")

    async def give_up() -> None:
        task = asyncio.create_task(Profiler(tmp_path).profile(worker(), ASKED))
        seen.append(int(await asyncio.to_thread(begun.read_text)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
    assert sorted(os.listdir(tmp_path)) == ["begun", "py-spy"]


@pytest.mark.parametrize(
    ("body", "scope", "said"),
    [
        ("sys.exit('Permission Denied: Try running again')", "1", "ptrace_scope is 1"),
        ("sys.exit('Permission Denied: Try running again')", "0", "CAP_SYS_PTRACE"),
        (
            "sys.exit('Error: no Python')",
            "0",
            "py-spy could not trace worker w0 (pid 4711) of model m: Error: no",
        ),
    ],
)
def test_obstacles_to_profiling_are_reported(
    tmp_path: Path, py_spy: Any, monkeypatch: pytest.MonkeyPatch, body: str, scope: str, said: str
) -> None:  # fmt: skip
    file = tmp_path / "ptrace_scope"
    file.write_text(f"{scope}\n")
    monkeypatch.setattr(profiler, "_YAMA", file)
    py_spy(body)
    assert said in refused(tmp_path)


def test_a_worker_that_exited_is_reported(tmp_path: Path, py_spy: Any) -> None:
    py_spy("sys.exit('Permission Denied')")
    assert "exited during profiling" in refused(tmp_path, worker(alive=False))


def test_a_hanging_profiler_is_killed(
    tmp_path: Path, py_spy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_EXTRA_S", -0.5)
    py_spy("import time; time.sleep(600)")
    assert "did not finish within 0.5 s" in refused(tmp_path)


def test_a_missing_profiler_names_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_program", lambda: None)
    assert "pip install py-spy" in refused(tmp_path)


def test_a_worker_is_profiled_once_at_a_time(tmp_path: Path, py_spy: Any) -> None:
    py_spy("open(file, 'w').write('a 1\\n')")

    async def both() -> list[Any]:
        profiler = Profiler(tmp_path)
        first, second = profiler.profile(worker(), ASKED), profiler.profile(worker(), ASKED)
        return list(await asyncio.gather(first, second, return_exceptions=True))

    first, second = asyncio.run(both())
    assert first.stacks == "a 1\n"
    assert "already being profiled" in second.text


@pytest.mark.parametrize("seconds", [0, 0.9, 301, float("nan"), -1])
def test_invalid_durations_are_refused(tmp_path: Path, py_spy: Any, seconds: float) -> None:
    py_spy("raise AssertionError")
    assert "between 1 and 300" in refused(tmp_path, asked=messages.ProfileWorker("m", seconds))


def test_the_requested_worker_is_chosen() -> None:
    workers = [worker(2), worker(1), worker(0, alive=False)]
    assert choose_worker(ASKED, workers).instance == 1
    assert choose_worker(messages.ProfileWorker("m", 1, 2), workers).instance == 2
    for asked in (messages.ProfileWorker("m", 1, 0), messages.ProfileWorker("m", 1, 7)):
        with pytest.raises(RemoteFailure, match="no worker of instance"):
            choose_worker(asked, workers)
    with pytest.raises(RemoteFailure, match="model m is suspended: profile it after"):
        choose_worker(ASKED, [], suspended=True)
    with pytest.raises(RemoteFailure, match="model m currently has no worker"):
        choose_worker(ASKED, [])


def test_a_full_disk_is_reported_and_can_be_retried(
    tmp_path: Path, py_spy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy("open(file, 'w').write('a;b 3\\n')")
    profiler = Profiler(tmp_path)

    def full(**place: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as short:
        short.setattr("tempfile.NamedTemporaryFile", full)
        with pytest.raises(RemoteFailure, match=r"No space left on device\. Free disk space"):
            asyncio.run(profiler.profile(worker(), ASKED))
    assert asyncio.run(profiler.profile(worker(), ASKED)).stacks == "a;b 3\n"
