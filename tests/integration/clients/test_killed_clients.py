"""Clients that are cancelled or killed during a registration, with a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.forks.prefork import Forking
from support.models.inference import Array, infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually, halt
from tritonclient.utils import InferenceServerException

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._register.message import plan
from pytriton.decorators import batch
from pytriton.exceptions import ModelExistsError, ModelNotFoundError
from pytriton.model_config import ModelConfig

#: A module whose factory says that it runs, and then waits for a file that never comes.
MODULE = """
import os, sys, threading
import numpy as np
import pytriton
from pytriton.decorators import batch
from pytriton.model_config import Tensor

X, Y = Tensor(name="x", dtype=np.float32, shape=(-1,)), Tensor(name="y", dtype=np.float32, shape=(-1,))

@pytriton.declare(name="slow", inputs=[X], outputs=[Y], factory=True, env=["MARK"])
def make():
    open(os.environ["MARK"], "w").write(str(os.getpid()))
    threading.Event().wait()
"""
SCRIPT = """
import sys
import pytriton, slow
pytriton.connect(sys.argv[1], 60).register(slow.make, replace=sys.argv[2] == "replace", progress=False)
"""


@batch
def double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


#: An interpreter that imports these takes half a second of CPU time.
_SCRIPTS = Forking("numpy", "cloudpickle", "pytriton.daemon", "pytriton.declaration")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all clients, so that the workers of their models are forks of one process."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(MODULE)
    (folder / "client.py").write_text(SCRIPT)
    return folder


@contextmanager
def registering(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a client process whose model is being loaded; yield it and the pid of the worker that loads."""
    mark, output = folder / "mark", folder / "output"
    mark.unlink(missing_ok=True)
    variables = {**os.environ, "MARK": str(mark)}
    with open(output, "wb") as printed:
        forked = None
        if command[0] != "-m":
            script = folder / command[0]
            forked = _SCRIPTS.start_script(script, command[1:], folder, variables, output=printed)
        client = forked or subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=variables, stderr=printed
        )

    def begun() -> str:
        assert client.poll() is None, output.read_text()
        return mark.read_text() if mark.exists() else ""

    try:
        worker = eventually(begun, "the factory runs")
        yield client, int(worker)
    finally:
        client.kill()
        client.wait()


def script(daemon: RunningDaemon, how: str = "new") -> tuple[str, ...]:
    return ("client.py", daemon.config.runtime_dir, how)


def is_undone(daemon: RunningDaemon, worker: int) -> bool:
    """Return whether nothing of the registration is left: worker, folder, log, status."""
    folder = Path(daemon.config.runtime_dir)
    return not (
        (worker and os.path.exists(f"/proc/{worker}"))
        or (folder / "models" / "slow").exists()
        or daemon.config.rundir.log_file("slow").exists()
        or list((folder / "l").iterdir())
        or daemon.client.models()
    )


def unregistered(daemon: RunningDaemon) -> bool:
    """Unregister the model; return False while its registration is being undone."""
    try:
        daemon.client.unregister("slow")
    except ModelExistsError:
        return False
    return True


def assert_undone(daemon: RunningDaemon, worker: int) -> None:
    eventually(lambda: is_undone(daemon, worker), "all of the registration is undone")
    with pytest.raises(ModelNotFoundError):
        daemon.client.model("slow")
    # The name is free again, and the daemon does what it always did.
    serve(daemon)
    assert ask(daemon) == [2.0, 2.0]
    daemon.client.unregister("slow")


def serve(daemon: RunningDaemon) -> None:
    daemon.client.register(double, "slow", X, Y, ModelConfig(), progress=False)


def workers(daemon: RunningDaemon) -> list[int]:
    return [one.pid for one in daemon.workers()]


def ask(daemon: RunningDaemon) -> list[float]:
    answer: list[float] = infer_once(daemon, "slow", {"x": ONES})["y"][0].tolist()
    return answer


def test_a_client_killed_during_its_registration_leaves_nothing(
    daemon: RunningDaemon, folder: Path
) -> None:
    with registering(folder, *script(daemon)) as (client, worker):
        client.kill()
        client.wait()
        assert_undone(daemon, worker)
    assert f"process {client.pid}, has exited" in daemon.said()


def test_ctrl_c_in_a_script_cancels_the_registration(daemon: RunningDaemon, folder: Path) -> None:
    with registering(folder, *script(daemon)) as (client, worker):
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == -signal.SIGINT
        assert_undone(daemon, worker)
    # It says so, and ends: a daemon that was held up meanwhile may see its end first.
    reported = ("its client cancelled it", f"process {client.pid}, has exited")
    assert any(text in daemon.said() for text in reported)


def test_ctrl_c_at_the_command_line_cancels_the_registration(
    daemon: RunningDaemon, folder: Path
) -> None:
    command = ("-m", "pytriton._cli", "register", "slow:make", "--runtime-dir")
    with registering(folder, *command, daemon.config.runtime_dir) as (client, worker):
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == 130
        said = (folder / "output").read_text()
        assert said.rstrip().endswith("pytriton-daemon: interrupted")
        assert_undone(daemon, worker)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_cancelled_replacement_leaves_the_old_model(
    daemon: RunningDaemon, folder: Path, number: int
) -> None:
    serve(daemon)
    try:
        former = daemon.client.model("slow").instances[0].pid
        with registering(folder, *script(daemon, "replace")) as (client, worker):
            client.send_signal(number)
            client.wait(60)
            eventually(lambda: not os.path.exists(f"/proc/{worker}"), "the new worker is gone")
        assert ask(daemon) == [2.0, 2.0]
        model = daemon.client.model("slow")
        assert [(one.pid, one.state) for one in model.instances] == [(former, "ready")]
        assert Path(daemon.config.runtime_dir, "models", "slow", "1").is_dir()
    finally:
        eventually(lambda: unregistered(daemon), "all is undone")


def until_it_loads(client: ControlClient) -> None:
    """Return when the daemon reports that it has requested the load from tritonserver."""
    while True:
        received = client.receive(60)
        assert received is not None, "the workers are loaded"
        if isinstance(received[1], messages.Progress) and received[1].stage == "serving":
            return


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaces"])
def test_a_registration_is_cancelled_while_tritonserver_loads_the_model(
    daemon: RunningDaemon, tmp_path: Path, replaces: bool
) -> None:
    """tritonserver, which hangs for a moment, cannot stop that load: the daemon restores the previous model, if any."""
    daemon.forget_said()

    @batch
    def triple(x: Array) -> dict[str, Array]:
        return {"y": x * 3}

    if replaces:
        serve(daemon)
    planned = plan(triple, "slow", X, Y, ModelConfig(), {"replace": replaces})
    server = daemon.server.pid
    with closing(ControlClient(daemon.config.rundir.control_endpoint)) as client:
        halt(server)
        try:
            asked = client.send(planned.message, planned.payloads())
            until_it_loads(client)
            client.send(messages.Cancel(asked))
            eventually(
                lambda: "its client cancelled it" in daemon.said(), "the daemon has heard it"
            )
        finally:
            os.kill(server, signal.SIGCONT)
        eventually(lambda: len(workers(daemon)) == replaces, "the new worker is gone")
    if replaces:
        assert [ask(daemon) for _ in range(5)] == [[2.0, 2.0]] * 5
        assert daemon.client.model("slow").info().state == "ready"
        # The new worker has gone, and what else there is to undo may take a moment.
        eventually(lambda: unregistered(daemon), "all is undone")
    else:
        eventually(lambda: is_undone(daemon, 0), "all is undone")
        with pytest.raises(InferenceServerException, match="slow"):
            ask(daemon)


def test_an_exception_in_the_progress_callback_cancels_the_registration(
    daemon: RunningDaemon,
) -> None:
    """The client remains usable."""

    def stop_at(_: object) -> None:
        raise LookupError("enough")

    for _ in range(3):
        with pytest.raises(LookupError, match="enough"):
            daemon.client.register(double, "slow", X, Y, ModelConfig(), progress=stop_at)
        eventually(lambda: not workers(daemon), "its worker is gone")
        eventually(lambda: is_undone(daemon, 0), "all is undone")
