"""Upgrades of a daemon under load, with the real tritonserver and real workers."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.load.under_load import under_load
from support.models.inference import Array
from support.models.open_stream import open_stream
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonDaemonError
from pytriton.model_config import ModelConfig

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def module_daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(frontend="native", management_address="127.0.0.1:0") as daemon:
        register(daemon, "model", instances=2)
        yield daemon


@pytest.fixture
def daemon(module_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The module's daemon, which serves two instances of `model` and nothing else."""
    with module_daemon.without_new_models():
        yield module_daemon
    module_daemon.client.scale("model", 2, progress=False)


def register(daemon: RunningDaemon, name: str, infer: Any = None, **options: Any) -> None:
    @batch
    def double(x: Array) -> dict[str, Array]:
        return {"y": x * 2}

    config = ModelConfig(max_batch_size=8)
    options = {"progress": False, "config": config, **options}
    daemon.client.register(infer or double, name, X, Y, **options)


def workers(daemon: RunningDaemon) -> dict[str, list[int | None]]:
    """Return the pids of all workers by model."""
    return {one.name: [each.pid for each in one.instances] for one in daemon.client.status().models}


def test_an_upgrade_under_load_fails_no_request(daemon: RunningDaemon) -> None:
    before, server = workers(daemon), daemon.client.status().server.pid
    started = psutil.Process(daemon.process.pid).create_time()
    with under_load(daemon) as load:
        load.wait(20)
        for _ in range(2):
            daemon.client.upgrade()
            load.wait(20)
    assert set(load.answers) == {2.0}
    assert workers(daemon) == before
    status = daemon.client.status()
    assert (status.pid, status.server.pid) == (daemon.process.pid, server)
    assert psutil.Process(status.pid).create_time() == started
    assert [event.numbers["upgrades"] for event in daemon.client.events(kinds=["upgraded"])] == [
        1,
        2,
    ]


def test_the_next_version_manages_all_models(daemon: RunningDaemon) -> None:
    """It scales and unregisters the models of the previous version, and replaces workers that exit."""
    daemon.client.upgrade()
    register(daemon, "other")
    daemon.client.scale("model", 3, progress=False)
    first = workers(daemon)["model"][0]
    assert first is not None
    psutil.Process(first).kill()
    eventually(lambda: first not in workers(daemon)["model"], "another worker is there")
    eventually(lambda: None not in workers(daemon)["model"], "all instances have a worker")
    with under_load(daemon, "model") as load:
        load.wait(20)
    daemon.client.upgrade()
    daemon.client.unregister("other")
    daemon.client.scale("model", 2, progress=False)
    assert list(workers(daemon)) == ["model"]


def test_a_stream_continues_during_an_upgrade(daemon: RunningDaemon, tmp_path: Path) -> None:
    with open_stream(daemon, tmp_path) as stream:
        daemon.client.upgrade()
        stream.finish()
    daemon.client.unregister("stream")


def test_client_requests_during_an_upgrade_wait(daemon: RunningDaemon) -> None:
    """Whenever it is sent, each is answered by either version."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def change() -> None:
        client = connect(daemon.config.runtime_dir, 60.0)
        try:
            while not stop.wait(0.01):
                client.scale("model", 2, progress=False)
                client.status()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        daemon.client.upgrade()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert [text for text in map(str, failures) if "by another client" not in text] == []


def test_a_version_that_cannot_start_changes_nothing(daemon: RunningDaemon, tmp_path: Path) -> None:
    before = workers(daemon)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(
        PyTritonDaemonError, match=r"does not run, or does not support upgrades.*\n.*no such module"
    ):
        daemon.client.upgrade(str(broken))
    assert workers(daemon) == before
    register(daemon, "after")
    daemon.client.unregister("after")


def test_a_failed_exec_changes_nothing(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The daemon has already paused by then; it resumes, and its workers reach it again."""
    vanishing = tmp_path / "python"
    vanishing.write_text(f'#!/bin/sh\nrm "$0"\nexec {sys.executable} "$@"\n')
    vanishing.chmod(0o755)
    before = workers(daemon)
    with under_load(daemon) as load:
        with pytest.raises(PyTritonDaemonError, match="No such file or directory"):
            daemon.client.upgrade(str(vanishing))
        load.wait(20)
    assert workers(daemon) == before
    register(daemon, "after", instances=2)
    daemon.client.unregister("after")
    daemon.client.upgrade()
    assert workers(daemon) == before


_FAILING = """#!/bin/sh
case "$*" in
*--take-over*) shift 2; exec {python} -c '
import sys
from pytriton.dispatcher.process import main
from pytriton.dispatcher.upgrade.coordinator import UpgradeCoordinator

def fail(*_):
    raise OSError("its worker is gone")

UpgradeCoordinator.adopt = fail
sys.exit(main())' "$@" ;;
*) exec {python} "$@" ;;
esac
"""


def test_models_that_cannot_be_taken_over_are_restarted(tmp_path: Path) -> None:
    """The process and its ports stay, persisted models are restored, and nothing else is left of what ran."""
    failing = tmp_path / "python"
    failing.write_text(_FAILING.format(python=sys.executable))
    failing.chmod(0o755)
    with RunningDaemon.start(frontend="native", state_dir=str(tmp_path / "state")) as daemon:
        register(daemon, "model")
        before, address = workers(daemon)["model"], daemon.http
        family = daemon.children()
        with pytest.raises(PyTritonDaemonError, match=r"daemon was restarted.*its worker is gone"):
            daemon.client.upgrade(str(failing))
        assert daemon.process.poll() is None
        assert daemon.client.status().pid == daemon.process.pid
        eventually(lambda: daemon.client.status().models[0].state == "ready", "it serves again")
        assert (workers(daemon)["model"] == before, daemon.http) == (False, address)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
        with under_load(daemon) as load:
            load.wait(10)
        daemon.client.upgrade()  # by a version that can


_OTHER = """#!/bin/sh
shift 2  # -m pytriton.dispatcher
exec {python} -c '
import sys
from pytriton.dispatcher.upgrade import snapshot
from pytriton._protocol import messages

messages.PROTOCOL += 1
snapshot.PROTOCOLS = {protocols}

from pytriton.dispatcher.process import main

sys.exit(main())' "$@"
"""


def other_protocol(folder: Path, protocols: tuple[int, ...]) -> str:
    """Return the path of a version that speaks the next protocol, and supports `protocols`."""
    program = folder / f"python{len(protocols)}"
    program.write_text(_OTHER.format(python=sys.executable, protocols=protocols))
    program.chmod(0o755)
    return str(program)


def test_workers_of_the_previous_protocol_are_replaced_one_by_one(tmp_path: Path) -> None:
    """A version that does not support them refuses to take over; one that does also replaces the server."""
    now = messages.PROTOCOL
    with RunningDaemon.start(frontend="native") as daemon:
        register(daemon, "model", instances=2)
        register(daemon, "other")
        before, server = workers(daemon), daemon.client.status().server.pid
        with under_load(daemon) as load:
            load.wait(20)
            with pytest.raises(
                PyTritonDaemonError, match=f"workers of model, other speak .* {now}"
            ):
                daemon.client.upgrade(other_protocol(tmp_path, (now + 1,)))
            assert workers(daemon) == before
            daemon.client.upgrade(other_protocol(tmp_path, (now + 1, now)))
            eventually(
                lambda: daemon.client.events(kinds=["server_replaced"]), "the server is, too"
            )
            load.wait(20)
        assert set(load.answers) == {2.0}
        after = workers(daemon)
        assert {name: len(set(pids)) for name, pids in after.items()} == {"model": 2, "other": 1}
        assert set(chain(*before.values())).isdisjoint(chain(*after.values()))
        assert daemon.client.status().server.pid != server
        reported = daemon.client.events(kinds=["recycle_due", "ready", "upgraded"])
        since = [event.kind for event in reported].index("upgraded") + 1
        assert [event.kind for event in reported[since:]] == ["recycle_due", "ready"] * 3
        with pytest.raises(
            PyTritonDaemonError, match=f"proxies in tritonserver speak .* {now + 1}"
        ):
            daemon.client.upgrade()  # back


_OWNER = """
import sys
import numpy as np
from pytriton.daemon import connect
from pytriton.model_config import Tensor

tensor = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
answer = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
connect(sys.argv[1], 60).register(
    lambda requests: [{"y": one["x"]} for one in requests], "ephemeral", tensor, answer,
    ephemeral=True, progress=False,
)
sys.stdin.read()
"""


@contextlib.contextmanager
def _ephemeral_model(daemon: RunningDaemon, folder: Path) -> Iterator[None]:
    """Bind the model "ephemeral" to a process, which exits at the end of the block, and the model with it."""
    script = folder / "owner.py"
    script.write_text(_OWNER)
    command = [sys.executable, str(script), daemon.config.runtime_dir]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as owner:
        try:
            eventually(lambda: "ephemeral" in workers(daemon), "it is registered")
            yield
        finally:
            owner.communicate()
            eventually(lambda: "ephemeral" not in workers(daemon), "it has gone with its process")


def test_every_part_of_the_daemon_survives_an_upgrade(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Listening sockets, suspended models, client-bound models, and counters."""
    register(daemon, "suspended", lazy=True)
    with _ephemeral_model(daemon, tmp_path):
        with under_load(daemon) as load:
            load.wait(20)
        (page,) = daemon.client.status().management_urls
        before = _requests(page)
        daemon.client.upgrade()
        status = daemon.client.status()
        assert status.management_urls == [page]
        states = {one.name: one.state for one in status.models}
        expected = {"model": "ready", "suspended": "suspended", "ephemeral": "ready"}
        assert {name: states.get(name) for name in expected} == expected
        assert _requests(page) >= before >= 20
        with under_load(daemon, "suspended") as load:
            load.wait(5)


def _requests(page: str) -> float:
    """Return the number of requests of the model, according to the metrics."""
    with urllib.request.urlopen(f"{page}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r'^pytriton_requests_total\{[^}]*model="model"[^}]*\} (\S+)$', text, re.M)
    return sum(map(float, found))


def test_a_signal_during_an_upgrade_is_handled_by_the_next_version(tmp_path: Path) -> None:
    """SIGTERM comes while neither version has a handler for it. The next version then shuts down in order."""
    settings = {"state_dir": str(tmp_path / "state"), "frontend": "native"}
    with RunningDaemon.start(**settings) as daemon:
        register(daemon, "model")
        asking = threading.Thread(target=_upgrade_in_vain, args=(daemon,))
        asking.start()
        log = daemon.config.rundir.log_file()
        eventually(lambda: "the next version can take over" in log.read_text(), "it begins")
        assert daemon.stop(signal.SIGTERM) == ExitCode.OK
        asking.join(60)
    with RunningDaemon.start(**settings) as daemon:
        eventually(lambda: daemon.client.status().models[0].state == "ready", "it serves again")


def _upgrade_in_vain(daemon: RunningDaemon) -> None:
    with contextlib.suppress(PyTritonDaemonError):
        daemon.client.upgrade()
