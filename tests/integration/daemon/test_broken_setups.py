"""Broken setups on one daemon: `explain`, `top` and the page each give the cause, without a look at the log."""

from __future__ import annotations

import json
import os
import resource
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forks.prefork import command
from support.models.inference import infer_once
from support.models.tensors import X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton import Limits
from pytriton._host.settings.start_flags import StartFlags
from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.exceptions import ModelNotFoundError, PyTritonDaemonError

ROWS = np.ones((1, 1), np.float32)


def _model(folder: Path) -> Callable[..., Any]:
    """Return a factory that needs a file; files and the first input value control its callable.

    It contains no `assert`: pytest rewrites asserts, so each worker would spend 0.1 s importing pytest.
    """

    def make() -> Any:
        import time

        while (folder / "slow").exists():
            time.sleep(0.01)
        weights = (folder / "weights").read_text()
        leaked: list[Any] = [weights]

        @batch
        def run(x: Any) -> Any:
            import os
            import signal

            if x[0, 0] == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            while (folder / "hold").exists():
                time.sleep(0.01)
            if (folder / "raise").exists():
                raise ArithmeticError(f"private {x[0, 0] + 12345}")
            if (folder / "leak").exists():
                leaked.append(bytearray(b"x") * (60 << 20))
            return {"y": x}

        return run

    return make


class Case:
    """A model with its own folder of files."""

    def __init__(self, daemon: RunningDaemon, folder: Path, name: str) -> None:
        self.daemon = daemon
        self.name = name
        self.folder = folder / name
        if not self.folder.exists():
            self.folder.mkdir()
            (self.folder / "weights").touch()

    def register(self, make: Callable[..., Any] | None = None, **options: Any) -> Model:
        return self.daemon.client.register(
            make or _model(self.folder), self.name, X, Y, factory=True, progress=False, **options
        )

    def register_as(self, name: str, **options: Any) -> Model:
        """Register another model that behaves the same."""
        return self.daemon.client.register(
            _model(self.folder), name, X, Y, factory=True, progress=False, **options
        )

    def infer(self, value: float = 1.0) -> None:
        infer_once(self.daemon, self.name, {"x": ROWS * value})

    def said(self) -> str:
        """Return the output of `explain` without the events."""
        try:
            found = self.daemon.client.explain(self.name, 0)
        except ModelNotFoundError:  # nothing has happened yet
            return ""
        return "\n".join([found.verdict, *(f"{one.text} | {one.advice}" for one in found.findings)])

    def says(self, *words: str) -> None:
        """Wait until `explain` contains all these texts."""

        def says_all() -> bool:
            said = self.said()
            return all(word in said for word in words)

        eventually(says_all, lambda: f"not all of {words} in: {self.said()}")

    def shows(self, column: str, words: str) -> None:
        """Wait until a field of the model on the page contains a text."""
        eventually(lambda: words in str(self.row().get(column)), lambda: str(self.row()))

    def row(self) -> dict[str, Any]:
        """The model's row of the page, which `top` shows, too."""
        url = self.daemon.client.status().management_urls[0]
        token = {"Authorization": f"Bearer {self.daemon.client.access_token}"}
        asked = urllib.request.Request(f"{url}/page/view.json", headers=token)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            rows = json.loads(answer.read())["rows"]
        return next((one for one in rows if one["model"] == self.name and not one["instance"]), {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broken")


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[RunningDaemon]:
    """A daemon restarted after "failed_restore" was registered; a file of that model has been deleted."""
    settings: dict[str, Any] = {
        "state_dir": str(folder / "state"), "management_address": "127.0.0.1:0", "memory_budget": "8GiB",
    }  # fmt: skip
    with RunningDaemon.start(**settings) as former:
        Case(former, folder, "failed_restore").register()
    (folder / "failed_restore" / "weights").unlink()
    with RunningDaemon.start(worker_backoff_s=0.2, **settings) as running:
        yield running


@pytest.fixture
def case(daemon: RunningDaemon, folder: Path, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A model named after the test."""
    one = Case(daemon, folder, request.node.name.removeprefix("test_"))
    yield one
    for file in ("hold", "slow"):
        (one.folder / file).unlink(missing_ok=True)


def _kill(model: Model) -> None:
    (one,) = model.instances
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)


def test_failed_restore(case: Case) -> None:
    case.says(
        "failed_restore is failed: it was registered before the daemon's start and could not be restored",
        "No such file or directory", "weights", "A file is missing where the callable expects it",
        "pytriton-daemon unregister failed_restore",
    )  # fmt: skip
    case.shows("last_exit", "could not be loaded: FileNotFoundError")


def test_crash_loop(case: Case) -> None:
    """The model was served, but its weights are gone: its workers exit one after the other."""
    served = case.register()
    (case.folder / "weights").unlink()
    _kill(served)
    case.says("instance 0 is in a crash loop", "No such file or directory", "the next attempt")
    case.shows("last_exit", "No such file or directory")


def test_hang(case: Case) -> None:
    case.register(execution_timeout_s=0.5)
    (case.folder / "hold").touch()
    with pytest.raises(InferenceServerException):
        case.infer()
    case.says("batches hung", "still running after 0.5 s (execution_timeout_s)", "logs hang")
    case.shows("last_exit", "execution_timeout_s")


def test_leak(case: Case) -> None:
    """No request fails because of it, so only `explain` can tell why workers are replaced all the time."""
    case.register(limits=Limits(recycle_above="150MiB"))
    (case.folder / "leak").touch()

    def leaks() -> bool:
        case.infer()
        return "it leaks" in case.said()

    eventually(leaks, case.said)
    case.says("workers reached limits.recycle_above ", "more than 150 MiB (limits)", "Fix the leak")


def test_poison(case: Case) -> None:
    case.register()
    with pytest.raises(InferenceServerException):
        case.infer(9)
    case.says("requests crashed every worker that ran them once", "killed by signal 9 (SIGKILL)",
              "what is special about that request")  # fmt: skip
    case.shows("last_exit", "SIGKILL")


def test_failing_requests(case: Case) -> None:
    """The worker is alive, but every request fails: that is as bad as having no worker."""
    case.register()
    (case.folder / "raise").touch()
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="private 12346"):
            case.infer()
    case.says("failing_requests is ready, but all 3 requests of the last ",
              "the callable raised; the last one ", "s ago: ArithmeticError",
              "pytriton-daemon requests failing_requests")  # fmt: skip
    assert "private" not in case.said()


def test_starved_queue(case: Case) -> None:
    case.register()
    (case.folder / "hold").touch()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(case.infer) for _ in range(6)]
        try:
            case.says("all 1 ready instances are busy", "requests wait in the queue: ",
                      "pytriton-daemon scale starved_queue N")  # fmt: skip
            eventually(lambda: (case.row().get("waiting") or 0) > 0, lambda: str(case.row()))
        finally:
            (case.folder / "hold").unlink()
        for one in asked:
            one.result()


def test_wrong_gpu(case: Case) -> None:
    with pytest.raises(PyTritonDaemonError, match="GPU 777"):
        case.register(devices=["777"])
    case.says("wrong_gpu is not served: its registration by user", "devices= contains GPU 777")


def test_full_disk(case: Case) -> None:
    """A limit on the size of files affects the daemon like a full disk, for large files only."""
    pid = case.daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
    make, ballast = _model(case.folder), os.urandom(8 << 20)

    def large() -> Any:
        return make() if ballast else None

    try:
        with pytest.raises(PyTritonDaemonError):
            case.register(large)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    case.says("its registration by user", "cannot be persisted", "Free space on the disk")


def test_slow_load(case: Case) -> None:
    """During a registration, and when a worker is replaced."""
    (case.folder / "slow").touch()
    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(case.register)
        try:
            case.says("slow_load is starting: instance 0 has been loading for")
        finally:
            (case.folder / "slow").unlink()
        served = registering.result()
    (case.folder / "slow").touch()
    _kill(served)
    case.says("instance 0 has lost its worker", "the next worker has been loading for")
    (case.folder / "slow").unlink()


def test_bad_replace(case: Case) -> None:
    case.register()
    (case.folder / "weights").unlink()
    with pytest.raises(PyTritonDaemonError):
        case.register(replace=True)
    case.says("bad_replace is ready, but it could not be replaced, as requested by user", "and is unchanged",
              "No such file or directory", "A file is missing where")  # fmt: skip


def test_failed_resume(case: Case) -> None:
    case.register(lazy=True)
    (case.folder / "weights").unlink()
    with pytest.raises(InferenceServerException, match="No such file or directory"):
        case.infer()
    case.says("failed_resume is ", "crash loop", "A file is missing where")


@pytest.mark.skipif(FRONT == "triton", reason="upgrades need the native frontend")
def test_failed_upgrade(case: Case) -> None:
    case.register()
    with pytest.raises(PyTritonDaemonError, match="cannot be run"):
        case.daemon.client.upgrade(str(case.folder / "python"))
    case.says("failed_upgrade is ready; an upgrade of the daemon by user", "this version continues")
    assert "callable" not in case.said()


def test_memory_wait(case: Case) -> None:
    """Another model holds the memory and is never suspended."""
    holder = case.register_as("memory_holder", memory_request="6GiB")
    case.register(lazy=True, memory_request="5GiB")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(case.infer)
        try:
            case.says("memory_wait is resuming: it is waiting for memory: it needs 5,120 MiB of memory, and ",
                      " MiB of memory is free", "`pytriton-daemon status` shows the budget")  # fmt: skip
            case.shows("state", "resuming")
            (budget,) = case.daemon.client.status().memory
            assert (budget.budget, budget.waiting) == (8 << 30, 1)
        finally:
            holder.unregister()
        asked.result()
    assert "waits for memory" not in case.said()


def test_wrong_settings(case: Case) -> None:
    """A reload of invalid settings changes nothing, and is reported because the user wanted a change."""
    settings = case.folder / "settings.toml"
    settings.write_text("log_level = 'loud'\n")
    StartFlags({}, str(settings), str(case.folder)).write(case.daemon.config.rundir)
    case.register()
    case.daemon.process.send_signal(signal.SIGHUP)
    case.says("wrong_settings is ready; ", "a reload of the settings",
              "failed; the old ones stay in effect: ", "'loud' is not one of", "reload again")  # fmt: skip


def _top(daemon: RunningDaemon) -> str:
    """Return the output of `top`, which is not truncated when it is written to a pipe."""
    where = ("--runtime-dir", daemon.config.runtime_dir)
    done = command("top", "--once", "--interval", "0.2", *where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_top_shows_what_the_page_shows(daemon: RunningDaemon) -> None:
    """Checked for the first of these models."""
    lines = {line.split()[0]: line for line in _top(daemon).splitlines() if line.strip()}
    assert "could not be" in lines["failed_restore"]
    assert "failed" in lines["failed_restore"]
    assert "not_ready" in lines["crash_loop"]


def test_drained(case: Case) -> None:
    """The last test of this module: a draining daemon accepts no more models."""
    case.register()
    case.daemon.client.drain(settle_s=0.0, stop=False)
    case.says("drained is ready, but the daemon is draining, as requested by user ", ": it answers requests",
              "use another daemon")  # fmt: skip
    assert _top(case.daemon).startswith("draining, ")
    assert case.daemon.client.status().state == "draining"
