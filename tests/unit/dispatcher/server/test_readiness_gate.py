"""The gate: opened by a load that goes well and an unload, and only open when it has gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.server import preload_layout
from pytriton.dispatcher.server.preload_layout import GATE, Gate


class Server:
    """Notes what it is asked. A model that it unloads is there for so many looks more."""

    def __init__(self, looks: int = 0, *, up: bool = True) -> None:
        self.asked: list[str] = []
        self._looks = looks
        self._up = up

    async def load(self, name: str, config: dict[str, Any] | None) -> None:
        assert config is not None
        self.asked.append(f"load {name} of {config['backend']}")
        if not self._up or config["backend"] != "pytriton":
            raise RemoteFailure(ErrorKind.LOAD_FAILED, "there is no such backend")

    async def unload(self, name: str) -> None:
        self.asked.append(f"unload {name}")

    async def repository_states(self) -> dict[str, str]:
        self.asked.append("states")
        self._looks -= 1
        return {"m": "READY", **({GATE: "UNLOADING"} if self._looks >= 0 else {})}


@pytest.fixture
def closed(tmp_path: Path) -> Gate:
    preload_layout.make_gate(tmp_path)
    return Gate(tmp_path, "pytriton")


def test_it_is_open_when_its_model_has_gone(tmp_path: Path, closed: Gate) -> None:
    server = Server(looks=2)
    asyncio.run(closed.open(server))
    opened = [f"load {GATE} of pytriton", f"unload {GATE}"]
    assert server.asked == [*opened, "states", "states", "states"]
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_opened_is_reported_and_stays(tmp_path: Path, closed: Gate) -> None:
    with pytest.raises(RemoteFailure, match="no such backend"):
        asyncio.run(closed.open(Server(up=False)))
    assert (tmp_path / GATE / "1").is_dir()


def test_it_is_closed_by_a_load_that_fails(tmp_path: Path) -> None:
    server = Server()
    asyncio.run(Gate(tmp_path, "pytriton").close(server))
    assert server.asked == [f"load {GATE} of models_are_being_loaded"]
    assert (tmp_path / GATE / "1").is_dir()


def test_a_failure_is_forgotten_by_a_load_that_goes_well() -> None:
    server = Server()
    asyncio.run(preload_layout.forget_failure(server, "m", "pytriton"))
    assert server.asked == ["load m of pytriton", "unload m"]
