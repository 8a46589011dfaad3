"""Models that load, unload and query other models."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle

from pytriton._host.ports import listening_at
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.repository import model_control
from pytriton.dispatcher.repository.model_control import ClientRequests, ModelControl

Start = Callable[..., SimulatedDaemon]
CONFIG = json.dumps({"backend": "python", "max_batch_size": 4})


class Asker:
    """A requesting model in its worker w1."""

    def __init__(self, sim: SimulatedDaemon) -> None:
        self.sim = sim
        self.control: ModelControl = sim.services.model_control

    def load(
        self, name: str, config: str = "", files: Sequence[str] = (), *contents: bytes
    ) -> None:
        message = messages.LoadOther("w1", name, config, list(files))
        self.sim.loop.run(self.control.load(message, contents))
        self.sim.settle()

    def unload(self, name: str, *, dependents: bool = False) -> None:
        message = messages.UnloadOther("w1", name, dependents=dependents)
        self.sim.loop.run(self.control.unload(message))

    def is_ready(self, name: str, version: str = "") -> bool:
        return self.sim.loop.ask(lambda: self.control.is_ready(name, version))


@pytest.fixture
def asker(start: Start) -> Asker:
    sim = start(model_control_mode="explicit")
    sim.served(sim.client.register("asker"))
    return Asker(sim)


def test_a_model_is_loaded_and_unloaded(asker: Asker) -> None:
    assert not asker.is_ready("pair")
    asker.load("pair")
    assert [asker.is_ready(name) for name in ("pair", "own", "py")] == [True, True, True]
    asker.unload("pair")
    assert [asker.is_ready(name) for name in ("pair", "own")] == [False, True]
    asker.sim.settle()
    assert set(asker.sim.server.models) == {"asker", "own", "py"}


def test_an_ensemble_is_unloaded_with_its_steps(asker: Asker) -> None:
    asker.load("pair")
    asker.unload("pair", dependents=True)
    asker.sim.settle()
    assert set(asker.sim.server.models) == {"asker"}
    asker.unload("pair", dependents=True)  # nothing happens, as in tritonserver


def test_uploaded_files_are_served_until_the_model_is_unloaded(asker: Asker) -> None:
    given = asker.sim.rundir.path / "given"
    asker.load("mine", CONFIG, ["file:1/model.py", "file:2/model.py"], b"one", b"two")
    assert asker.is_ready("mine")
    (folder,) = given.glob("*/mine")
    assert (folder / "2" / "model.py").read_bytes() == b"two"
    asker.load("mine", CONFIG, ["file:3/model.py"], b"three")
    (folder,) = given.glob("*/mine")  # the previous files are gone
    assert [path.name for path in folder.iterdir()] == ["3"]
    asker.unload("mine")
    asker.sim.settle()
    assert list(given.iterdir()) == []
    with pytest.raises(RemoteFailure, match="no model repository has a model 'mine'"):
        asker.load("mine")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("none",), ErrorKind.NOT_FOUND, "no model repository has a model 'none'"),
        (("py", "{"), ErrorKind.INVALID, "is not JSON"),
        (("py", "[]"), ErrorKind.INVALID, "is a JSON list, not an object"),
        (("py", "", ["file:1/a"], b""), ErrorKind.INVALID, "files= requires config="),
        (
            ("py", CONFIG, ["file:1/a"]),
            ErrorKind.INVALID,
            "1 file names but the contents of 0 files",
        ),
        (("py", CONFIG, ["1/a"], b""), ErrorKind.INVALID, "is not a valid file name"),
        (
            ("py", CONFIG, ["file:../a"], b""),
            ErrorKind.INVALID,
            "points outside the model's folder",
        ),
        (
            ("../py", CONFIG, ["file:1/a"], b""),
            ErrorKind.INVALID,
            "is not a valid name for a model",
        ),
        (("odd",), ErrorKind.LOAD_FAILED, "no backend 'tensorrt'"),
        (("asker", CONFIG), ErrorKind.EXISTS, "no other model can give it a configuration"),
    ],
)
def test_impossible_requests_are_reported(
    asker: Asker, arguments: Any, kind: ErrorKind, words: str
) -> None:
    with pytest.raises(RemoteFailure) as caught:
        asker.load(*arguments)
    assert (caught.value.kind, words in caught.value.text) == (kind, True), caught.value.text
    assert set(asker.sim.server.models) == {"asker"}


def test_registered_models_cannot_be_loaded_or_unloaded_by_others(asker: Asker) -> None:
    asker.load("asker")
    with pytest.raises(RemoteFailure, match="other models cannot unload it"):
        asker.unload("asker")
    asker.sim.usual_plan = "hangs"
    (worker,) = asker.sim.alive("asker")
    worker.end()
    asker.sim.advance(6.0)
    assert not asker.is_ready("asker")
    with pytest.raises(RemoteFailure, match="is registered, but not ready"):
        asker.load("asker")


@pytest.mark.parametrize(
    ("version", "ready"), [("", True), ("-1", True), ("1", True), ("2", False), ("01", True)]
)
def test_readiness_of_a_version(asker: Asker, version: str, ready: bool) -> None:
    for name in ("py", "own"):
        asker.load(name)
        assert asker.is_ready(name, version) is ready


def test_an_invalid_version_is_reported(asker: Asker) -> None:
    with pytest.raises(RemoteFailure, match=r"'1\.5' is not a valid model version"):
        asker.is_ready("py", "1.5")


def test_refused_files_leave_the_previous_ones(asker: Asker) -> None:
    """In their place, where tritonserver would load them again."""
    asker.load("own")
    link = asker.sim.rundir.models / "own"
    former = link.readlink()
    asker.sim.server.obstacles["own"] = Obstacle("refuse")
    with pytest.raises(RemoteFailure, match="tritonserver did not load own"):
        asker.load("own", json.dumps({"backend": "mine"}), ["file:1/libtriton_mine.so"], b"")
    assert link.readlink() == former
    assert asker.is_ready("own")
    assert list((asker.sim.rundir.path / "given").iterdir()) == []


def test_it_listens_although_the_folders_descriptor_is_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread, right after the socket was bound by the path /proc/self/fd/DESCRIPTOR/NAME."""
    reused: list[int] = []

    def listen(path: Path, backlog: int) -> socket.socket:
        listener = listening_at(path, backlog=backlog)
        number = int(listener.getsockname().split("/")[4])
        file = os.open(os.devnull, os.O_RDONLY)
        if file != number:
            os.dup2(file, number)
            os.close(file)
        reused.append(number)
        return listener

    async def start_and_close() -> None:
        nothing: Any = None
        control = ClientRequests(tmp_path / "models.sock", nothing, nothing, nothing)
        await control.start()
        await control.close()

    monkeypatch.setattr(model_control, "listening_at", listen)
    try:
        asyncio.run(start_and_close())
    finally:
        for number in reused:
            os.close(number)
    assert not (tmp_path / "models.sock").exists()
