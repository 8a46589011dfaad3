"""Requests of tritonserver's clients to load and unload models: which are carried out, and which are ignored."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.repository.model_control import (
    BadRequest,
    ClientRequest,
    ClientRequests,
    read_request,
)
from pytriton.dispatcher.repository.model_records import ModelRecord
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.server.tritonserver import TritonServer


def framed(*strings: bytes) -> bytes:
    parts = [struct.pack("=Q", len(strings))]
    return b"".join([*parts, *(struct.pack("=Q", len(one)) + one for one in strings)])


class Repository:
    """A repository with the models a, b and c: c is an ensemble of b and of a, which was also loaded by itself."""

    def __init__(self) -> None:
        self.reported: list[Any] = []
        self.served = {"a", "b", "c"}
        self.failure: Exception | None = None
        self.records = self

    async def names(self) -> dict[str, str]:
        return dict.fromkeys("abcd", "/repository")

    def parts(self, name: str) -> list[str]:
        return ["a", "b"] if name == "c" else []

    def of(self, name: str) -> ModelRecord:
        return ModelRecord(as_step=name == "b")

    def serves(self, name: str) -> bool:
        return name in self.served

    async def load(
        self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes] | None
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.reported.append(("load", name, config, files))

    async def unload(self, name: str) -> None:
        self.reported.append(("unload", name))
        self.served.discard(name)


class Scene:
    """The handler of such requests, with a repository and a model `mine` registered by a client."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "models.sock"
        self.repository = Repository()
        self.changing: set[str] = set()
        self.from_server = True
        server = SimpleNamespace(
            is_changing=lambda name: name in self.changing,
            check_proxy=lambda pid: self.from_server,
        )
        registered = [SimpleNamespace(spec=SimpleNamespace(name=name)) for name in ("mine", "a")]
        self.requests = ClientRequests(
            self.path,
            cast(TritonServer, server),
            cast(ServedModels, registered),
            cast(RepositoryModels, self.repository),
        )

    async def ask(self, request: bytes) -> list[str]:
        """Send a request as the interposer does; return the parts of the answer."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(request)
        writer.write_eof()
        try:
            answer = await reader.read()
        except ConnectionResetError:  # it was closed before all was read
            answer = b""
        writer.close()
        parts, at = [], 8
        while at < len(answer):
            (size,) = struct.unpack_from("=Q", answer, at)
            parts.append(answer[at + 8 : at + 8 + size].decode())
            at += 8 + size
        return parts


def play(folder: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def played() -> None:
        one = Scene(folder)
        await one.requests.start()
        try:
            await scene(one)
        finally:
            await one.requests.close()
        assert not one.path.exists()

    asyncio.run(asyncio.wait_for(played(), 60))


_CONFIG = {"backend": "python"}


@pytest.mark.parametrize(
    ("request_", "answer", "reported"),
    [
        # "a" is registered, too: by the repository itself.
        ([b"load", b"a", b""], "done", [("load", "a", None, None)]),
        ([b"load", b"d", b""], "done", [("load", "d", None, None)]),
        ([b"load", b"mine", b""], "core", []),
        ([b"load", b"nobody", b""], "core", []),
        (
            [b"load", b"d", b"", b"config", json.dumps(_CONFIG).encode()],
            "done",
            [("load", "d", _CONFIG, None)],
        ),
        (
            [b"load", b"new", b"", b"config", b"{}", b"file:1/model.py", b"\0\xff"],
            "done",
            [("load", "new", {}, {"file:1/model.py": b"\0\xff"})],
        ),
        ([b"load", b"new", b"", b"file:1/model.py", b""], "3", []),
        ([b"load", b"d", b"", b"config", b"no JSON"], "3", []),
        ([b"load", b"d", b"", b"config", b"[]"], "3", []),
        ([b"unload", b"a", b""], "done", [("unload", "a")]),
        ([b"unload", b"d", b""], "core", []),
        ([b"unload", b"mine", b""], "core", []),
        ([b"unload", b"c", b""], "done", [("unload", "c")]),
        ([b"unload", b"c", b"dependents"], "done", [("unload", "c"), ("unload", "b")]),
    ],
)
def test_repository_requests_are_carried_out(
    tmp_path: Path, request_: list[bytes], answer: str, reported: list[Any]
) -> None:
    async def scene(one: Scene) -> None:
        status, text = await one.ask(framed(*request_))
        assert status == answer
        assert bool(text) is answer.isdecimal()
        assert one.repository.reported == reported

    play(tmp_path, scene)


def test_the_daemon_s_own_requests_are_passed_through(tmp_path: Path) -> None:
    async def scene(one: Scene) -> None:
        one.changing.add("a")
        for action in (b"load", b"unload"):
            assert await one.ask(framed(action, b"a", b"")) == ["core", ""]
        assert one.repository.reported == []

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RemoteFailure(ErrorKind.NOT_FOUND, "no such"), "2"),
        (RemoteFailure(ErrorKind.INVALID, "wrong"), "3"),
        (RemoteFailure(ErrorKind.UNAVAILABLE, "not now"), "4"),
        (RemoteFailure(ErrorKind.EXISTS, "taken"), "6"),
        (RemoteFailure(ErrorKind.LOAD_FAILED, "ValueError: no weights"), "1"),
        (KeyError("a fault"), "1"),
    ],
)
def test_the_reason_of_a_failed_load_reaches_the_client(
    tmp_path: Path, failure: Exception, code: str
) -> None:
    async def scene(one: Scene) -> None:
        one.repository.failure = failure
        status, text = await one.ask(framed(b"load", b"a", b""))
        assert status == code
        assert (failure.text if isinstance(failure, RemoteFailure) else "a fault") in text

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"abc",
        struct.pack("=Q", 1 << 63),
        framed(b"load", b"a"),
        framed(b"load", b"a", b"", b"config"),
        framed(b"index", b"a", b""),
        framed(b"load", b"\xff", b""),
        framed(b"load", b"a", b"")[:-1] + b"x",
        struct.pack("=QQ", 3, 1 << 50),
    ],
)
def test_malformed_requests_are_ignored(tmp_path: Path, sent: bytes) -> None:
    async def scene(one: Scene) -> None:
        assert await one.ask(sent) == []
        assert await one.ask(framed(b"load", b"a", b"")) == ["done", ""]
        assert one.repository.reported == [("load", "a", None, None)]

    play(tmp_path, scene)


def test_only_tritonserver_is_answered(tmp_path: Path) -> None:
    async def scene(one: Scene) -> None:
        one.from_server = False
        assert await one.ask(framed(b"load", b"a", b"")) == []
        assert one.repository.reported == []

    play(tmp_path, scene)


def test_a_requests_parts_are_in_the_interposers_order() -> None:
    async def read(sent: bytes) -> ClientRequest:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await read_request(reader)

    sent = framed(b"unload", "ä".encode(), b"dependents")
    assert asyncio.run(read(sent)) == ClientRequest("unload", "ä", True, None, {})
    with pytest.raises(BadRequest, match="asks for 'index'"):
        asyncio.run(read(framed(b"index", b"a", b"")))
