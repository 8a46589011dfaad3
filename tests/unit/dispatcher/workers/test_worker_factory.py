"""One factory starts both kinds of workers, each with a unique name."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.workers import worker_process
from pytriton.dispatcher.workers.hosted_worker import HostedWorker, Registrant
from pytriton.dispatcher.workers.worker_process import WorkerFactory, WorkerProcess

#: Replaces the library: prints its arguments, and exits.
_BOOT = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}))
"""
_OTEL = {
    "trace-config": ["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:4318/v1/traces"]
}


def _spec(**fields: Any) -> messages.ModelSpec:
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment(sys.executable))
    return msgspec.structs.replace(spec, **fields)


@asynccontextmanager
async def making(
    folder: Path, on_unrecoverable: Callable[[str], None] = lambda model: None, **settings: Any
) -> AsyncIterator[WorkerFactory]:
    boot = folder / "library" / "pytriton" / "worker" / "boot.py"
    boot.parent.mkdir(parents=True)
    boot.write_text(_BOOT)
    rundir = RuntimeDir(folder / "run")
    (folder / "run").mkdir()
    rundir.lane_socket("w1").parent.mkdir(exist_ok=True)
    config = DaemonConfig(**{"max_fork_servers": 0, **settings})
    with closing(KillOnDeath(Path("/dev/shm/pytriton-test-of-nothing-"))) as kill_on_death:
        yield WorkerFactory(
            config, rundir, folder / "library", kill_on_death, on_unrecoverable=on_unrecoverable
        )


async def _said(worker: Any) -> dict[str, Any]:
    """Wait for a worker process to exit; return its output."""
    assert isinstance(worker, WorkerProcess)
    await asyncio.wait([worker.exited])
    await worker.stop(0)
    said: dict[str, Any] = msgspec.json.decode(worker.last_lines())
    return said


@pytest.mark.parametrize(
    ("code", "failed", "timeout_s", "reported"),
    [
        (4, "unrecoverable", 0.0, ["m"]),
        (4, "unrecoverable", 60.0, []),  # the worker's own message may still arrive
        (4, "callable", 0.0, []),
        (0, "unrecoverable", 0.0, []),
    ],
)
async def test_an_unrecoverable_worker_is_recognized_by_its_exit(
    code: int,
    failed: str,
    timeout_s: float,
    reported: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message may be lost in an upgrade; a callable's own sys.exit(4) does not count."""
    monkeypatch.setitem(globals(), "_BOOT", f"import sys; sys.exit({code})")
    monkeypatch.setattr(worker_process, "LAST_MESSAGE_TIMEOUT_S", timeout_s)
    heard: list[str] = []
    async with making(tmp_path, heard.append) as factory:
        worker = await factory.start(_spec(), 0, None)
        worker.stats.failed(failed, 1)
        await asyncio.wait([worker.exited])
        await worker.stop(0)
        await asyncio.sleep(0)  # lets timers that are due call back
        assert heard == reported
        assert factory.unreported == (timeout_s > 0)  # until then, an upgrade would lose it


async def test_a_worker_process_gets_what_the_daemon_provides(tmp_path: Path) -> None:
    async with making(tmp_path) as factory:
        workers = [await factory.start(_spec(devices=["0", "1"]), slot, None) for slot in (0, 3)]
        said = [await _said(worker) for worker in workers]
        assert [worker.name for worker in workers] == ["w1", "w2"]
        library, endpoint, name, parent, _ = said[1]["argv"]
        assert (library, name, parent) == (str(tmp_path / "library"), "w2", str(os.getpid()))
        assert endpoint == RuntimeDir(tmp_path / "run").control_endpoint
        assert [one["env"]["CUDA_VISIBLE_DEVICES"] for one in said] == ["0", "1"]
        assert not any(key.startswith("OTEL_") for key in said[0]["env"])
        assert [worker.instance for worker in workers] == [0, 3]


async def test_workers_get_the_version_they_serve(tmp_path: Path) -> None:
    """For a Triton Python model, slots cycle through the versions."""
    async with making(tmp_path) as factory:
        python_model = messages.PythonModel("/models/m", "/models/m/1/model.py")
        spec = _spec(versions=[2, 5], python_model=python_model, devices=["0", "1"])
        workers = [await factory.start(spec, slot, None) for slot in range(4)]
        assert [worker.version for worker in workers] == [2, 5, 2, 5]
        said = [await _said(worker) for worker in workers]
        devices = [one["env"]["CUDA_VISIBLE_DEVICES"] for one in said]
        assert devices == ["0", "0", "1", "1"]


async def test_the_span_destination_is_passed_if_tritonserver_traces(tmp_path: Path) -> None:
    async with making(tmp_path, tritonserver_options=_OTEL) as factory:
        said = await _said(await factory.start(_spec(), 0, None))
        endpoint = said["env"]["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
        assert endpoint == "http://127.0.0.1:4318/v1/traces"


async def test_a_registrant_is_asked_for_a_thread(tmp_path: Path) -> None:
    class Process:
        pid = 4242

        def __init__(self) -> None:
            self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.got: list[Any] = []

        async def send(self, message: Any) -> None:
            self.got.append(message)

    async with making(tmp_path) as factory:
        process: Any = Process()
        worker = await factory.start(_spec(isolation="thread"), 2, cast(Registrant, process))
        assert isinstance(worker, HostedWorker)
        await asyncio.sleep(0)
        (start,) = process.got
        assert (start.worker, start.instance) == ("w1", 2)
        worker.mark_ended("is over")


@pytest.mark.parametrize(
    ("world", "reported"),
    [
        ({"python": "/nowhere/python"}, r"its interpreter /nowhere/python .*python="),
        ({"cwd": "/nowhere"}, r"its working directory /nowhere .*cwd="),
    ],
)
async def test_missing_files_are_reported_and_the_next_worker_gets_a_new_name(
    tmp_path: Path, world: dict[str, Any], reported: str
) -> None:
    async with making(tmp_path) as factory:
        spec = _spec(world=messages.WorkerEnvironment(**{"python": sys.executable, **world}))
        with pytest.raises(RemoteFailure, match=reported):
            await factory.start(spec, 0, None)
        worker = await factory.start(_spec(), 0, None)
        assert worker.name == "w2"
        await _said(worker)


async def test_a_limit_of_the_daemon_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memfd_create(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(linux, "memfd_create", memfd_create)
    async with making(tmp_path) as factory:
        with pytest.raises(RemoteFailure) as failure:
            await factory.start(_spec(), 0, None)
        assert failure.value.kind is ErrorKind.UNAVAILABLE
        assert failure.value.text == (
            "model m: cannot start a worker: Too many open files. This is a limit of the daemon or of the machine."
        )
