"""The control socket against hostile peers: a real ROUTER in a loop, and real client sockets."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from pytriton._protocol import control, messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.control import peers
from pytriton.dispatcher.control.control_socket import (
    MAX_MESSAGE_BYTES,
    MAX_PAYLOADS,
    ControlServer,
    Peer,
)
from pytriton.dispatcher.control.pending_requests import MAX_REQUESTS
from pytriton.dispatcher.telemetry.events.events import current_actor

HELD = messages.GetLogs("held")
QUICK = messages.ListModels()
BIG = messages.LogLines(["x" * 100_000])
#: Timeout of awaited messages; only a failing test waits this long.
LONG_S = 30.0
_MANY = 2000


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder for sockets: `tmp_path` may exceed the 107 bytes of a unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as path:
        yield Path(path)


class Service:
    """A handler: answers QUICK immediately, holds HELD until the end, and records its requests."""

    def __init__(self) -> None:
        self.heard: list[messages.AnyMessage] = []
        self.actors: list[str] = []
        self.release = asyncio.Event()
        self.reply: messages.AnyMessage = messages.Done()

    async def handle(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage:
        self.heard.append(message)
        self.actors.append(current_actor())
        if message == HELD:
            await self.release.wait()
        return self.reply


class Client:
    """A bare DEALER."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)

    async def send(self, number: int, *frames: bytes) -> None:
        await self.socket.send_multipart([number.to_bytes(8, "little"), *frames])

    async def answer(self) -> tuple[int, messages.AnyMessage]:
        parts = await asyncio.wait_for(self.socket.recv_multipart(), LONG_S)
        request_id, message, _ = control.parse(parts)
        return int.from_bytes(request_id, "little"), message

    async def refusal(self, number: int) -> messages.Failure:
        """Return why a request was refused."""
        answered, failure = await self.answer()
        assert answered == number
        assert isinstance(failure, messages.Failure)
        return failure


@asynccontextmanager
async def serving(folder: Path, **limits: int) -> AsyncIterator[tuple[Service, Client, Client]]:
    service = Service()
    endpoint = f"ipc://{folder}/c"
    server = ControlServer(endpoint, service.handle, **limits)  # type: ignore[arg-type]
    server.bind()
    task = asyncio.create_task(server.serve())
    context = zmq.asyncio.Context()
    clients = [Client(context, endpoint) for _ in range(2)]
    try:
        yield service, clients[0], clients[1]
    finally:
        task.cancel()
        await server.close()
        for client in clients:
            client.socket.close()
        context.term()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([bytes(MAX_MESSAGE_BYTES + 1)], "at most 8388608 are accepted"),
        ([messages.encode(QUICK), *[b""] * (MAX_PAYLOADS + 1)], "1025 payloads in one message"),
    ],
    ids=["message", "frames"],
)
async def test_an_oversized_message_is_refused_and_the_peer_continues(
    short_dir: Path, frames: list[bytes], why: str
) -> None:
    async with serving(short_dir) as (service, client, _):
        await client.send(1, *frames)
        assert why in (await client.refusal(1)).text
        assert service.heard == []
        await client.send(2, messages.encode(QUICK), *[b""] * MAX_PAYLOADS)
        assert await client.answer() == (2, messages.Done())


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([], "got 1 frames"),
        ([b"\xc1"], "malformed"),
        ([msgspec.msgpack.encode({"type": "OfLater"})], "OfLater"),
        ([msgspec.msgpack.encode({"type": "GetLogs", "name": 7})], "name"),
    ],
    ids=["none", "bytes", "type", "member"],
)
async def test_a_malformed_message_gets_an_error(
    short_dir: Path, frames: list[bytes], why: str
) -> None:
    """Otherwise a client of another version, or in another language, would hang."""
    async with serving(short_dir) as (service, client, _):
        await client.send(1, *frames)
        failure = await client.refusal(1)
        assert failure.kind == "invalid"
        assert "this daemon cannot read the message" in failure.text
        assert why in failure.text
        assert service.heard == []
        await client.send(2, messages.encode(QUICK))
        assert await client.answer() == (2, messages.Done())


async def test_the_audit_names_the_user_and_the_command_of_a_change(short_dir: Path) -> None:
    async with serving(short_dir) as (service, client, _):
        sent: list[messages.AnyMessage] = [QUICK, messages.Scale("m", 2), messages.Shutdown()]
        for number, message in enumerate(sent):
            await client.send(number, messages.encode(message))
            await client.answer()
        user, pid = pwd.getpwuid(os.geteuid()).pw_name, os.getpid()
        assert service.actors[0] == f"user {os.geteuid()}, process {pid}"  # not audited
        for who in service.actors[1:]:
            assert re.fullmatch(rf"user {user}, process {pid} \(\S.*\)", who)


@pytest.mark.parametrize(
    ("command_line", "shown"),
    [
        (["/venv/bin/python3.11", "/venv/bin/pytriton-daemon", "scale", "m", "2"], "pytriton-daemon scale"),
        (["/venv/bin/pytriton-daemon", "--version"], "pytriton-daemon"),
        (["python", "-u", "jobs/train.py", "--api-key", "secret"], "python jobs/train.py"),
        (["python3", "-m", "pytriton._cli", "register", "m:f"], "python3 -m pytriton._cli register"),
        (["python3", "-m", "http.server", "secret"], "python3 -m http.server"),
        (["python", "-c", "secret"], "python -c"),
        (["python"], "python"),
        (["-bash"], "-bash"),
        (["gunicorn: worker [app]"], "gunicorn: worker [app]"),
    ],
)  # fmt: skip
def test_a_command_is_named_without_arguments_that_may_be_secrets(
    monkeypatch: pytest.MonkeyPatch, command_line: list[str], shown: str
) -> None:
    monkeypatch.setattr(peers, "_command_line", lambda pid: command_line)
    user = pwd.getpwuid(os.geteuid()).pw_name
    said = peers.describe_sender(peers.Sender("", os.geteuid(), 42))
    assert said == f"user {user}, process 42 ({shown})"


def test_an_exited_sender_keeps_its_ids() -> None:
    no_user, no_process = (1 << 31) - 2, 1 << 30
    said = peers.describe_sender(peers.Sender("", no_user, no_process))
    assert said == f"user {no_user}, process {no_process}"
    assert peers.describe_sender(peers.Sender("client ann")) == "client ann"


async def test_a_payload_over_the_limit_disconnects_only_its_sender(short_dir: Path) -> None:
    large = control.ALWAYS_ACCEPTED_BYTES
    async with serving(short_dir, max_payload_size=100_000) as (service, client, other):
        monitor = client.socket.get_monitor_socket()
        await client.send(1, messages.encode(QUICK), bytes(large + 1))
        while True:
            parts = await asyncio.wait_for(monitor.recv_multipart(), LONG_S)
            if int.from_bytes(parts[0][:2], "little") == zmq.EVENT_DISCONNECTED:
                break
        client.socket.disable_monitor()
        monitor.close()
        await other.send(1, messages.encode(QUICK), bytes(100_000))
        assert await other.answer() == (1, messages.Done())
        assert service.heard == [QUICK]


async def test_a_received_payload_that_is_too_large_gets_an_error(short_dir: Path) -> None:
    async with serving(short_dir, max_payload_size=100_000) as (service, client, _):
        await client.send(1, messages.encode(QUICK), b"", bytes(100_001))
        failure = await client.refusal(1)
        assert "has 100001 bytes, but this daemon accepts at most 100000" in failure.text
        assert service.heard == []


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((100, 9 << 20, 1), None),
        (
            (100, (10 << 20) + 1, 1),
            r"model m: .*has 10485761 bytes.*at most 10485760\. .*factory=True",
        ),
        (((8 << 20) + 1, 0, 1), "8388609 bytes without its payloads"),
        ((100, 1, MAX_PAYLOADS + 1), "1025 payloads"),
    ],
)
async def test_large_messages_need_permission_first(
    short_dir: Path, sizes: tuple[int, int, int], why: str | None
) -> None:
    async with serving(short_dir, max_payload_size=10 << 20) as (service, client, _):
        await client.send(1, messages.encode(messages.Offer("model m", *sizes)))
        if why is None:
            assert await client.answer() == (1, messages.Done())
        else:
            assert re.search(why, (await client.refusal(1)).text)
        assert service.heard == []


async def test_a_client_sends_nothing_that_would_be_dropped(short_dir: Path) -> None:
    """It would wait forever for the answer, because ZeroMQ notifies neither side."""

    def ask(size: int) -> messages.AnyMessage:
        with closing(control.ControlClient(f"ipc://{short_dir}/c")) as client:
            return client.ask(QUICK, [b"", bytes(size)], timeout_s=LONG_S)

    async with serving(short_dir, max_payload_size=10 << 20) as (service, *_):
        with pytest.raises(RemoteFailure, match=r"ListModels: .*has 10485761 bytes"):
            await asyncio.to_thread(ask, (10 << 20) + 1)
        assert service.heard == []
        assert await asyncio.to_thread(ask, 10 << 20) == messages.Done()
        assert service.heard == [QUICK]


async def test_concurrent_requests_are_limited_for_each_connection(short_dir: Path) -> None:
    async with serving(short_dir) as (service, client, other):
        for number in range(MAX_REQUESTS):
            await client.send(number, messages.encode(HELD))
        await client.send(1000, messages.encode(QUICK))
        failure = await client.refusal(1000)
        assert failure.kind == "unavailable"
        assert f"{MAX_REQUESTS} requests of this connection" in failure.text
        await other.send(1, messages.encode(QUICK))
        assert await other.answer() == (1, messages.Done())
        service.release.set()
        for _ in range(MAX_REQUESTS):
            assert (await client.answer())[1] == messages.Done()
        await client.send(1001, messages.encode(QUICK))
        assert await client.answer() == (1001, messages.Done())


async def test_a_replayed_request_is_refused_during_the_first_one(short_dir: Path) -> None:
    async with serving(short_dir) as (service, client, _):
        for _ in range(2):
            await client.send(7, messages.encode(HELD))
        assert "is already in progress" in (await client.refusal(7)).text
        assert service.heard == [HELD]


async def test_a_client_that_never_reads_costs_bounded_memory(short_dir: Path) -> None:
    """2,000 answers of 100 kB would be 200 MB: nearly all are dropped, and other clients are served."""
    async with serving(short_dir) as (service, _, other):
        service.reply = BIG
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        deaf = context.socket(zmq.DEALER)
        deaf.linger, deaf.rcvhwm = 0, 1
        deaf.connect(f"ipc://{short_dir}/c")
        before = resident()
        for number in range(_MANY):
            deaf.send_multipart([number.to_bytes(8, "little"), messages.encode(QUICK)])
            while len(service.heard) < number:  # no more in flight than accepted
                await asyncio.sleep(0)
        grown = resident() - before
        deaf.close()
        context.term()
        assert grown < 100_000 * _MANY / 4
        service.reply = messages.Done()
        await other.send(2, messages.encode(QUICK))
        assert await other.answer() == (2, messages.Done())


def resident() -> int:
    """Return this process's resident memory in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
