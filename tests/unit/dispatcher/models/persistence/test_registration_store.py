"""Failures of the state directory reach the requester."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.registration_store import RegistrationStore, finish
from pytriton.dispatcher.models.persistence.state_dir import Entry, Store, StoreError, Unfinished


class FullDisk:
    """A store, and a pending write, in which every operation fails."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: object, **options: object) -> None:
            raise StoreError(f"{name}: no space left on device")

        return refuse

    spec = payloads = registered_at = None


_STORE = cast(Store, FullDisk())


@pytest.mark.parametrize("what", ["write", "previous", "remove"])
def test_store_errors_reach_the_caller(what: str) -> None:
    kept = RegistrationStore(_STORE)
    doing: dict[str, Callable[[], Awaitable[object]]] = {
        "write": lambda: kept.write(cast(Entry, FullDisk())),
        "previous": lambda: kept.previous("m"),
        "remove": lambda: kept.remove("m"),
    }

    async def ask() -> None:
        await doing[what]()

    with pytest.raises(RemoteFailure, match=f"{what}: no space left") as caught:
        asyncio.run(ask())
    assert caught.value.kind is ErrorKind.UNAVAILABLE


def test_commit_errors_are_reported_too() -> None:
    with pytest.raises(RemoteFailure, match="finish: no space left"):
        finish(cast(Unfinished, FullDisk()))


def test_a_failed_amendment_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    store.write(spec, [b""], 1.0).finish()
    before = sorted(path.name for path in (tmp_path / "models").iterdir())

    def refuse(unfinished: Unfinished) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(Unfinished, "finish", refuse)
    with pytest.raises(RemoteFailure, match="no space left"):
        asyncio.run(RegistrationStore(store).amend(Entry(1, 1.0, spec, [b""]), lease=None))
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == before
    store.close()
