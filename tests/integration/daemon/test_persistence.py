"""Registrations are persisted: a daemon restores the models of its last run, and a model can be rolled back."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.load.under_load import under_load
from support.models.inference import infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton._host import gpus
from pytriton.dispatcher.models.persistence import state_dir
from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig

#: Whether files tell how many GPUs there are.
HAS_COUNTED_GPUS = gpus.missing("999") is not None
#: Some start four daemons, one after the other.
pytestmark = pytest.mark.timeout(400)


def adder(step: float) -> Callable[[Any], Any]:
    return lambda requests: [{"y": request["x"] + step} for request in requests]


def register(daemon: RunningDaemon, step: float, name: str = "model", **options: Any) -> None:
    config = ModelConfig(max_batch_size=8)
    daemon.client.register(adder(step), name, X, Y, config, **{"progress": False, **options})


def answer(daemon: RunningDaemon, name: str = "model") -> float:
    return float(infer_once(daemon, name, {"x": ONES}, "grpc")["y"][0, 0])


def states(daemon: RunningDaemon) -> dict[str, str]:
    return {info.name: info.state for info in daemon.client.status().models}


def _settled(daemon: RunningDaemon) -> None:
    eventually(lambda: "restoring" not in states(daemon).values(), lambda: str(states(daemon)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_restores_the_models_of_the_last_run(tmp_path: Path, number: int) -> None:
    """In their order and last state: replaced, scaled, without those that were unregistered."""
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


def test_a_hanging_load_holds_up_no_other_model(tmp_path: Path) -> None:
    """The status shows the hanging load and its duration."""
    state, gate = tmp_path / "state", tmp_path / "gate"
    gate.touch()

    class Gated:
        def __init__(self) -> None:
            while not gate.exists():
                time.sleep(0.01)

        def __call__(self, requests: Any) -> Any:
            return [{"y": request["x"] + 1} for request in requests]

    with RunningDaemon.start(state_dir=str(state)) as daemon:
        options: Any = {"progress": False}
        config = ModelConfig(max_batch_size=8)
        daemon.client.register(Gated, "stuck", X, Y, config, **options)
        for step, name in enumerate(("a", "b"), start=1):
            register(daemon, step, name)
    gate.unlink()
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        restored = {"stuck": "restoring", "a": "ready", "b": "ready"}
        eventually(lambda: states(daemon) == restored, lambda: str(states(daemon)))
        assert (answer(daemon, "a"), answer(daemon, "b")) == (2, 3)
        (stuck,) = [one for one in daemon.client.status().models if one.loading_since]
        assert stuck.name == "stuck"
        (finding, *_) = daemon.client.explain("stuck").findings
        assert "has been loading for" in finding.text
        gate.touch()
        _settled(daemon)
        assert answer(daemon, "stuck") == 2
        assert [model.name for model in daemon.client.models()] == ["stuck", "a", "b"]


def test_a_failed_restore_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    """A damaged file is set aside; a model that does not load waits for the next start or a new registration.

    tests/unit/dispatcher/models/persistence/test_restorer.py tests the next start.
    """
    state = tmp_path / "state"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    pinned = {"devices": ["cpu"]} if HAS_COUNTED_GPUS else {}
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        register(daemon, 1, "damaged")
        register(daemon, 2, "homeless", python=str(python), env=path)
        register(daemon, 1, "pinned", **pinned)
        for step in (2, 3):
            register(daemon, step, "sound", replace=step == 3, **pinned)
    kept = state / "models" / "damaged.registration"
    kept.write_bytes(kept.read_bytes()[:-1])
    python.unlink()
    if HAS_COUNTED_GPUS:
        for name in ("pinned.registration", "sound.previous"):
            move(state / "models" / name, "999")  # as on a machine that had so many
    with RunningDaemon.start(state_dir=str(state)) as daemon:
        _settled(daemon)
        there = "failed" if HAS_COUNTED_GPUS else "ready"
        assert states(daemon) == {"sound": "ready", "homeless": "failed", "pinned": there}
        assert answer(daemon, "sound") == 4
        problems = daemon.client.status().problems
        (problem,) = [one for one in problems if "cannot be used" in one]
        assert "damaged.registration cannot be used: its checksum is wrong" in problem
        assert [path.name.rpartition(".")[0] for path in (state / "set-aside").iterdir()] == [
            "damaged.registration"
        ]
        assert "interpreter" in error_of(daemon, "homeless")
        register(daemon, 7, "homeless")  # needs no replace=True: nothing is served
        assert answer(daemon, "homeless") == 8
        if HAS_COUNTED_GPUS:
            no_gpu = "model pinned: devices= contains GPU 999: this machine has"
            assert no_gpu in error_of(daemon, "pinned")
            with pytest.raises(RegistrationError, match="model sound: devices= contains GPU 999"):
                daemon.client.rollback("sound")
            assert answer(daemon, "sound") == 4


def error_of(daemon: RunningDaemon, name: str) -> str:
    return daemon.client.model(name).info().error or ""


def move(file: Path, device: str) -> None:
    """Change the device in a persisted registration."""
    entry = state_dir.decode(file.read_bytes())
    spec = msgspec.structs.replace(entry.spec, devices=[device])
    file.write_bytes(state_dir.encode(msgspec.structs.replace(entry, spec=spec)))


def test_an_ephemeral_daemon_persists_nothing(tmp_path: Path) -> None:
    """The next start has no models; rollback still works."""
    with RunningDaemon.start(ephemeral=True, state_dir=str(tmp_path / "state")) as daemon:
        register(daemon, 1)
        register(daemon, 2, replace=True)
        daemon.client.rollback("model")
        assert answer(daemon) == 2
        assert daemon.client.status().state_dir == ""
    assert not (tmp_path / "state").exists()


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with its own state directory."""
    state = tmp_path_factory.mktemp("keeping") / "state"
    with RunningDaemon.start(state_dir=str(state)) as running:
        yield running


def test_a_registration_that_cannot_be_persisted_is_refused(keeping: RunningDaemon) -> None:
    """The model that was to be replaced remains."""
    state = keeping.config.state_path
    register(keeping, 1)
    (state / "models").rename(state / "gone")
    for name, replace in (("model", True), ("other", False)):
        with pytest.raises(RegistrationError, match=r"cannot be persisted: .*--ephemeral"):
            register(keeping, 2, name, replace=replace)
    assert states(keeping) == {"model": "ready"}
    assert answer(keeping) == 2
    (state / "gone").rename(state / "models")
    keeping.client.unregister("model")


def test_a_rollback_fails_no_request(keeping: RunningDaemon) -> None:
    """Back and forth, under load."""
    register(keeping, 1)
    with pytest.raises(RegistrationError, match="nothing to roll back to"):
        keeping.client.rollback("model")
    register(keeping, 2, replace=True)
    with under_load(keeping, clients=2) as load:
        load.wait(4)
        for expected in (2, 3):
            keeping.client.model("model").rollback()
            assert answer(keeping) == expected
            load.wait(4)
    assert set(load.answers) == {2, 3}
    keeping.client.unregister("model")


def test_a_rollback_restores_the_previous_code(
    keeping: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the callable's module, and one that it imports, have changed or been deleted."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kept_model.py").write_text(
        "import kept_step\n\n\ndef infer(requests):\n"
        "    return [{'y': one['x'] + kept_step.STEP} for one in requests]\n"
    )
    config = ModelConfig(max_batch_size=8)
    for step in (1, 20):
        (tmp_path / "kept_step.py").write_text(f"STEP = {step}\n")
        infer = importlib.import_module("kept_model").infer
        keeping.client.register(infer, "model", X, Y, config, replace=step > 1, progress=False)
        assert answer(keeping) == 1 + step
        for name in ("kept_model", "kept_step"):
            del sys.modules[name]
    (tmp_path / "kept_model.py").write_text("raise SystemExit('half a change')\n")
    keeping.client.rollback("model")
    assert answer(keeping) == 2
    (tmp_path / "kept_step.py").unlink()
    keeping.client.rollback("model")
    assert answer(keeping) == 21
    keeping.client.unregister("model")


def test_a_second_daemon_cannot_use_the_state_directory(keeping: RunningDaemon) -> None:
    """It reports that and exits."""
    with pytest.raises(AssertionError, match="another daemon is using the state directory"):
        RunningDaemon.start(state_dir=keeping.config.state_dir)
