"""Registrations are kept: a daemon serves again what it served when it last ran, and a model can be rolled back."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.load.under_load import under_load
from support.models.inference import Inference
from support.running import RunningDaemon, eventually

from pytriton._registering import gpus
from pytriton.dispatcher.models import state_dir
from pytriton.exceptions import ModelExistsError, RegistrationError
from pytriton.ipc import messages
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
ONES = np.ones((1, 2), np.float32)
#: Some start four daemons, one after the other.
pytestmark = pytest.mark.timeout(400)


def adder(step: float) -> Callable[[Any], Any]:
    return lambda requests: [{"y": request["x"] + step} for request in requests]


def register(daemon: RunningDaemon, step: float, name: str = "model", **options: Any) -> None:
    config = ModelConfig(max_batch_size=8)
    daemon.client.register(adder(step), name, X, Y, config, **{"progress": False, **options})


def answer(daemon: RunningDaemon, name: str = "model") -> float:
    connection = Inference("grpc", daemon.grpc)
    try:
        return float(connection.infer(name, {"x": ONES})["y"][0, 0])
    finally:
        connection.close()


def states(daemon: RunningDaemon) -> dict[str, str]:
    return {info.name: info.state for info in daemon.client.status().models}


def _settled(daemon: RunningDaemon) -> None:
    eventually(lambda: "restoring" not in states(daemon).values(), lambda: str(states(daemon)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_serves_what_the_last_one_served(tmp_path: Path, number: int) -> None:
    """In order, as it was last: replaced, scaled, without what was unregistered."""
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        for step, name in enumerate(("b", "c", "a"), start=1):
            register(daemon, step, name)
        register(daemon, 10, "b", replace=True)
        daemon.client.scale("a", 2)
        daemon.client.unregister("c")
        registered_at = daemon.client.model("a").info().registered_at
        daemon.stop(number)
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        _settled(daemon)
        models = daemon.client.models()
        assert [model.name for model in models] == ["b", "a"]
        assert [len(model.instances) for model in models] == [1, 2]
        assert (answer(daemon, "b"), answer(daemon, "a")) == (11, 4)
        assert daemon.client.model("a").info().registered_at == registered_at
        daemon.client.rollback("b")
        assert answer(daemon, "b") == 2


def test_models_become_ready_one_after_the_other(tmp_path: Path) -> None:
    """The daemon takes registrations meanwhile; the name of one that waits is taken."""
    gate = tmp_path / "gate"
    gate.touch()

    def gated() -> Any:
        while not gate.exists():
            threading.Event().wait(0.02)
        return adder(1)

    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        register(daemon, 1, "first")
        daemon.client.register(gated, "gated", X, Y, factory=True, progress=False)
        register(daemon, 3, "last")
        gate.unlink()
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        eventually(lambda: states(daemon).get("first") == "ready", lambda: str(states(daemon)))
        assert (states(daemon)["gated"], states(daemon)["last"]) == ("restoring", "restoring")
        register(daemon, 5, "new")
        assert answer(daemon, "new") == 6
        with pytest.raises(ModelExistsError, match="about to be served again"):
            register(daemon, 6, "last")
        daemon.client.unregister("last")
        gate.touch()
        _settled(daemon)
        assert states(daemon) == {"first": "ready", "new": "ready", "gated": "ready"}
        gate.unlink()
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        eventually(lambda: "gated" in states(daemon), "the daemon restores")
        assert daemon.stop() == 0  # in the middle of it


def test_what_is_asked_of_a_model_that_is_being_restored(tmp_path: Path) -> None:
    """To replace, scale or roll it back waits for the restore; to unregister it ends that."""
    gate = tmp_path / "gate"
    gate.touch()

    def gated() -> Any:
        while not gate.exists():
            threading.Event().wait(0.02)
        return adder(1)

    def asked(daemon: RunningDaemon) -> list[Callable[[Waiting], object]]:
        return [
            lambda waits: register(daemon, 10, "replaced", replace=True, progress=waits),
            lambda waits: daemon.client.scale("scaled", 2, progress=waits),
            lambda waits: daemon.client.rollback("back", progress=waits),
        ]

    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        daemon.client.register(gated, "gone", X, Y, factory=True, progress=False)
        for name in ("replaced", "scaled", "back"):
            daemon.client.register(gated, name, X, Y, factory=True, progress=False)
        register(daemon, 20, "back", replace=True)
        daemon.client.rollback("back")  # it is a gated one again
        gate.unlink()
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        eventually(lambda: workers(daemon), "the first of them is being restored")
        daemon.client.unregister("gone")
        assert "gone" not in states(daemon)
        waiting = [Waiting() for _ in asked(daemon)]
        with ThreadPoolExecutor() as threads:
            calls = [threads.submit(ask, one) for ask, one in zip(asked(daemon), waiting)]
            for one, name in zip(waiting, ("replaced", "scaled", "back")):
                assert one.begun.wait(60), name
                assert name in one.texts[0]
            gate.touch()
            for call in calls:
                call.result()
        assert (answer(daemon, "replaced"), answer(daemon, "back")) == (11, 21)
        assert len(daemon.client.model("scaled").instances) == 2
        daemon.client.rollback("replaced")  # what was restored is what it goes back to
        assert answer(daemon, "replaced") == 2
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        _settled(daemon)
        assert "gone" not in states(daemon)


class Waiting:
    """What a client is told while its request waits."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.texts: list[str] = []

    def __call__(self, event: messages.Progress) -> None:
        if event.stage == "waiting":
            self.texts.append(event.text)
            self.begun.set()


def workers(daemon: RunningDaemon) -> bool:
    return any("worker" in " ".join(child.cmdline()) for child in daemon.children())


def test_what_cannot_be_restored_is_told_and_harms_nothing(tmp_path: Path) -> None:
    """A damaged file is set aside; a model that does not load waits for the next start, or for a new one."""
    state = tmp_path / "state"
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        register(daemon, 1, "damaged")
        register(
            daemon, 2, "homeless", python=str(python), env={"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        register(daemon, 3, "sound")
    kept = state / "models" / "damaged.registration"
    kept.write_bytes(kept.read_bytes()[:-1])
    python.unlink()
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        assert states(daemon) == {"sound": "ready", "homeless": "failed"}
        assert answer(daemon, "sound") == 4
        status = daemon.client.status()
        (problem,) = status.problems
        assert "damaged.registration cannot be used: its checksum is wrong" in problem
        assert [path.name.rpartition(".")[0] for path in (state / "set-aside").iterdir()] == [
            "damaged.registration"
        ]
        error = daemon.client.model("homeless").info().error
        assert error is not None
        assert "interpreter" in error
    shutil.copy(sys.executable, python)
    python.unlink()
    python.symlink_to(sys.executable)
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        assert states(daemon) == {"homeless": "ready", "sound": "ready"}
        python.unlink()
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        register(daemon, 7, "homeless")  # needs no replace=True: nothing is served
        assert answer(daemon, "homeless") == 8
        assert states(daemon) == {"sound": "ready", "homeless": "ready"}


@pytest.mark.skipif(gpus.missing("999") is None, reason="files do not tell how many GPUs there are")
def test_a_model_whose_gpu_has_gone(tmp_path: Path) -> None:
    """It is told, waits for the next start, and the daemon serves the others."""
    state = tmp_path / "state"
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        register(daemon, 1, "pinned", devices=["cpu"])
        for step in (2, 3):
            register(daemon, step, "sound", devices=["cpu"], replace=True)

    def move(name: str, device: str) -> None:
        file = state / "models" / name
        entry = state_dir.decode(file.read_bytes())
        spec = msgspec.structs.replace(entry.spec, devices=[device])
        file.write_bytes(state_dir.encode(msgspec.structs.replace(entry, spec=spec)))

    for name in ("pinned.registration", "sound.previous"):
        move(name, "999")  # as on a machine that had so many
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        assert states(daemon) == {"pinned": "failed", "sound": "ready"}
        error = daemon.client.model("pinned").info().error
        assert error is not None
        assert "model pinned: devices names GPU 999: this machine has" in error
        with pytest.raises(RegistrationError, match="model sound: devices names GPU 999"):
            daemon.client.rollback("sound")
        assert answer(daemon, "sound") == 4
    move("pinned.registration", "")
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        assert answer(daemon, "pinned") == 2


def test_a_daemon_that_keeps_nothing(tmp_path: Path) -> None:
    """ephemeral: the next start begins empty; rollback works all the same."""
    with RunningDaemon.start(ephemeral=True, state_dir=str(tmp_path / "state")) as daemon:
        register(daemon, 1)
        register(daemon, 2, replace=True)
        daemon.client.rollback("model")
        assert answer(daemon) == 2
        assert daemon.client.status().state_dir == ""
    assert not (tmp_path / "state").exists()


def test_what_cannot_be_kept_is_not_served(tmp_path: Path) -> None:
    """The model that was to be replaced serves on."""
    state = tmp_path / "state"
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        register(daemon, 1)
        (state / "models").rename(state / "gone")
        for name, replace in (("model", True), ("other", False)):
            with pytest.raises(RegistrationError, match=r"cannot be kept: .*--ephemeral"):
                register(daemon, 2, name, replace=replace)
        assert states(daemon) == {"model": "ready"}
        assert answer(daemon) == 2
        (state / "gone").rename(state / "models")


def test_rolling_back_fails_no_request(tmp_path: Path) -> None:
    """There and back, under load."""
    with RunningDaemon.start(state_dir=str(tmp_path / "state")) as daemon:
        register(daemon, 1)
        with pytest.raises(RegistrationError, match="nothing to go back to"):
            daemon.client.rollback("model")
        register(daemon, 2, replace=True)
        with under_load(daemon, clients=2) as load:
            load.wait(4)
            for expected in (2, 3):
                daemon.client.model("model").rollback()
                assert answer(daemon) == expected
                load.wait(4)
        assert set(load.answers) == {2, 3}


def test_a_state_directory_has_one_daemon(tmp_path: Path) -> None:
    """The second one says so and ends."""
    first = RunningDaemon.start(state_dir=str(tmp_path / "state"))
    with first, pytest.raises(AssertionError, match="another daemon uses the state directory"):
        RunningDaemon.start(state_dir=str(tmp_path / "state"))
