"""OpenAI streams written by the native frontend: what clients get, byte by byte, in all circumstances."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.frontend.openai_process import (
    END,
    ENDED,
    Talk,
    chunk,
    connected,
    openai_frontend,
    request_of,
)
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.relayed_stream import descriptors
from support.frontend.talking_model import is_cancelled
from support.real_daemon import eventually

from pytriton.dispatcher.openai.event_stream import _MAX_IDLE

Begin = Callable[..., Talk]


@pytest.fixture(scope="module")
def native(made: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIProcess]:
    folder = tmp_path_factory.mktemp("relay")
    with running(made, {"unsent_bytes": 1 << 20}, private=folder / "own.sock") as native:
        yield native


@pytest.fixture(scope="module")
def openai(native: OpenAIProcess) -> Iterator[tuple[subprocess.Popen[str], int]]:
    assert native.private is not None
    with openai_frontend(native.private) as started:
        yield started


@pytest.fixture
def begin(openai: tuple[Any, int], tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def make(*headers: str, port: int = 0, **options: Any) -> Talk:
            talk = Talk(port or openai[1], tmp_path, *headers, **options)
            stack.callback(talk.close)
            return talk

        yield make


def _relayed(talk: Talk) -> None:
    """Let the native frontend write, and check that it does: the OpenAI process stays idle."""
    talk.say("sdata: 0\n\n")
    assert talk.head().startswith(b"HTTP/1.1 200 ")
    talk.read(chunk(b"data: 0\n\n"))
    for number in range(1, 4):
        talk.say(f"sdata: {number}\n\n")
        talk.read(chunk(f"data: {number}\n\n".encode()))


def _ended(talk: Talk) -> None:
    talk.say(END)
    talk.end()
    talk.read(chunk(ENDED) + b"0\r\n\r\n")


def test_the_openai_frontend_is_idle_during_a_relay(
    made: Built, begin: Begin, tmp_path: Path
) -> None:
    """In processes of its own: connections of other tests that end late change the number of descriptors."""
    private = tmp_path / "own.sock"
    with running(made, private=private) as native, openai_frontend(private) as (openai, port):
        talk = begin(port=port)
        before = descriptors(native.process.pid)
        _relayed(talk)
        eventually(lambda: descriptors(native.process.pid) == before + 1, "it has the client's")
        process = psutil.Process(openai.pid)
        switches = process.num_ctx_switches().voluntary
        for number in range(200):
            talk.say(f"sdata: {number} ü\n\n")
            talk.read(chunk(f"data: {number} ü\n\n".encode()))
        assert process.num_ctx_switches().voluntary - switches < 160
        _ended(talk)
        # The OpenAI frontend's connection stays open.
        eventually(lambda: descriptors(native.process.pid) == before - 1, "the others are closed")


def test_the_connection_is_reused(begin: Begin) -> None:
    first = begin()
    _relayed(first)
    _ended(first)
    again = begin(client=first.client)
    _relayed(again)
    _ended(again)


def test_a_pipelined_request_is_answered_after_the_relay(begin: Begin, tmp_path: Path) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
    talk = begin(behind=head)
    _relayed(talk)
    talk.client.sendall(head)
    talk.say("sdata: more\n\n")
    talk.read(chunk(b"data: more\n\n"))
    _ended(talk)
    for _ in range(2):
        got = talk.head()
        assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        size = int(got.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = b""
        while len(body) < size:
            body += talk.client.recv(size - len(body))
        assert json.loads(body)["data"][0]["id"] == "talking"


def test_connection_close_is_honored(begin: Begin) -> None:
    talk = begin("Connection: close")
    _relayed(talk)
    _ended(talk)
    assert talk.client.recv(1) == b""


def _send_no_more(talk: Talk, port: int) -> None:
    """Close the client's sending side; the frontend has seen it when others have been answered."""
    talk.client.shutdown(socket.SHUT_WR)
    for _ in range(3):
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).status == 200


@pytest.mark.parametrize("relayed", [False, True])
def test_a_half_closed_client_gets_its_stream(
    begin: Begin, openai: tuple[Any, int], *, relayed: bool
) -> None:
    """Like `nc -N`, which closes its sending side and keeps reading."""
    talk = begin()
    if relayed:
        _relayed(talk)
    _send_no_more(talk, openai[1])
    if relayed:
        talk.read(chunk(b": still there?\n\n"))
    else:
        assert talk.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        talk.say("sdata: 0\n\n")
        assert talk.head().startswith(b"HTTP/1.1 200 ")
        talk.read(chunk(b"data: 0\n\n"))
        talk.read(
            chunk(b": still there?\n\n")
        )  # of the native frontend, as soon as it has the connection
    talk.say("sdata: more\n\n")
    talk.read(chunk(b"data: more\n\n"))
    _ended(talk)
    assert talk.client.recv(1) == b""


def test_a_truncated_request_closes_the_connection(openai: tuple[Any, int]) -> None:
    with connected(openai[1]) as client:
        client.sendall(request_of("x")[:-5])
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1 << 16) == b""


def test_an_http_1_0_client_gets_no_chunks(begin: Begin) -> None:
    talk = begin(version="1.0")
    for text in ("sdata: 0\n\n", "sdata: 1\n\n", END):
        talk.say(text)
    talk.end()
    assert b"chunked" not in talk.head()
    assert talk.rest() == b"data: 0\n\ndata: 1\n\n" + ENDED


@pytest.mark.parametrize("handed", [False, True])
@pytest.mark.parametrize(
    ("last", "code"),
    [("", "model_error"), ('e{"message":"no","status":400,"type":"t","code":"c"}', "c"), ("z", "model_error")],
    ids=["crash", "refusal", "nonsense"],
)  # fmt: skip
def test_an_error_follows_the_events(begin: Begin, last: str, code: str, handed: bool) -> None:
    talk = begin()
    if handed:
        _relayed(talk)
    else:
        talk.say("sdata: 0\n\n")
        talk.head()
        talk.read(chunk(b"data: 0\n\n"))
    talk.say(last)
    talk.end()
    size = int(talk.client.makefile("rb", 0).readline(), 16)
    said = talk.client.recv(size, socket.MSG_WAITALL)
    assert json.loads(said.split(b"\n\n")[0][6:])["error"]["code"] == code
    assert said.endswith(b"data: [DONE]\n\n")
    talk.read(b"\r\n0\r\n\r\n")
    again = begin(client=talk.client)
    _relayed(again)
    _ended(again)


def test_a_stream_without_an_end_marker_is_an_error(begin: Begin) -> None:
    talk = begin()
    _relayed(talk)
    talk.end()
    assert b'"model_error"' in talk.client.recv(1 << 16)


def test_keep_alive_comments_are_sent_during_silence(native: OpenAIProcess, begin: Begin) -> None:
    assert native.private is not None
    with openai_frontend(native.private, keepalive_s=0.2) as (_, port):
        _comments(begin(port=port))


def _comments(talk: Talk) -> None:
    comment = chunk(b": keep-alive\n\n")
    assert talk.head()
    talk.read(comment)
    for number in range(2):
        talk.say(f"sdata: {number}\n\n")
        got = b""
        while not got.endswith(comment * 3):
            got += talk.client.recv(1000)
        assert got.replace(comment, b"") == chunk(f"data: {number}\n\n".encode())
    talk.say(END)
    talk.end()
    got = b""
    while not got.endswith(b"\r\n0\r\n\r\n"):
        got += talk.client.recv(1000)
    assert got.replace(comment, b"") == chunk(ENDED) + b"0\r\n\r\n"


def test_a_late_reader_gets_the_whole_stream(begin: Begin) -> None:
    talk = begin(room=4096)
    _relayed(talk)
    events = [f"data: {n} {'x' * 100_000}\n\n" for n in range(8)]
    for event in events:
        talk.say(f"s{event}")
    talk.say(END)
    talk.end()
    talk.read(b"".join(chunk(event.encode()) for event in events))
    talk.read(chunk(ENDED) + b"0\r\n\r\n")
    again = begin(client=talk.client)
    _relayed(again)


def test_a_client_that_does_not_read_is_disconnected(
    made: Built, begin: Begin, tmp_path: Path
) -> None:
    limits = {"unsent_bytes": 1 << 20, "unsent_s": 0.5}
    private = tmp_path / "own.sock"
    with running(made, limits, private=private), openai_frontend(private) as (_, port):
        talk = begin(port=port, room=4096)
        _relayed(talk)
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                talk.say(f"sdata: {'x' * (1 << 20)}\n\n")
        with pytest.raises(ConnectionResetError):
            talk.rest()


@pytest.mark.parametrize("events", range(4))
def test_a_disconnected_client_ends_its_stream(
    begin: Begin, openai: tuple[Any, int], events: int
) -> None:
    talk = begin()
    for number in range(events):
        talk.say(f"sdata: {number}\n\n")
        if number == 0:
            talk.head()
        talk.read(chunk(f"data: {number}\n\n".encode()))
    talk.client.close()
    assert is_cancelled(talk.model)
    eventually(lambda: _active(openai[1]) == 0, "its place is free")


def _active(port: int, *headers: str) -> int:
    fields = dict(one.split(": ", 1) for one in headers)
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=fields)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    return int(text.partition("\npytriton_openai_active_requests ")[2].split()[0])


def test_a_cancelled_stream_is_charged_for_its_events(
    native: OpenAIProcess, begin: Begin, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "a"\nkey = "sk-a-key-of-the-tests"\ntokens_per_minute = 20\n')
    key = "Authorization: Bearer sk-a-key-of-the-tests"
    assert native.private is not None
    with openai_frontend(native.private, keys_file=str(keys)) as (_, port):
        # The second time there are not enough left, and for the next minutes: the key gets one more every 3 s.
        for events in (8, 72):
            talk = begin(key, port=port)
            talk.say("sdata: 0\n\n")
            talk.head()
            talk.read(chunk(b"data: 0\n\n"))
            for _ in range(events - 1):
                talk.say("sdata: 1\n\n")
                talk.read(chunk(b"data: 1\n\n"))
            talk.client.close()
            assert is_cancelled(talk.model)
            # The key gets back what the request had reserved only when it has ended in the OpenAI process, too.
            eventually(lambda: _active(port, key) == 0, "the end of the request")
        with connected(port) as client:
            client.sendall(request_of("x", key))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 429 ")


def test_a_response_over_its_timeout_ends_with_an_error(
    native: OpenAIProcess, begin: Begin
) -> None:
    """The frontend relays it by then, unless the machine is too slow."""
    assert native.private is not None
    with openai_frontend(native.private, timeout_s=10) as (process, port):
        talk = begin(port=port)
        talk.say("sdata: 0\n\n")
        assert talk.head().startswith(b"HTTP/1.1 200 ")
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += talk.client.recv(1 << 16)
        events = got.replace(chunk(b": still there?\n\n"), b"")
        assert events.startswith(chunk(b"data: 0\n\n"))
        assert events.count(b'"timeout"') == 1
        assert is_cancelled(talk.model)
        pids = (process.pid, native.process.pid)
        before = [descriptors(pid) for pid in pids]
        full = begin(port=port, room=4096)
        full.say("sdata: 0\n\n")
        full.head()
        with suppress(BrokenPipeError, ConnectionResetError):
            full.say(f"sdata: {'x' * (1 << 22)}\n\n")
        assert is_cancelled(full.model)
        eventually(
            lambda: all(descriptors(pid) <= was for pid, was in zip(pids, before)),
            lambda: f"descriptors: {before} and {[descriptors(pid) for pid in pids]}",
        )
        # Nothing can follow a part of a chunk.
        full.client.settimeout(0.1)
        with suppress(ConnectionResetError, socket.timeout):
            assert b"timeout" not in full.rest()


@pytest.mark.parametrize("full", [False, True])
def test_a_killed_native_frontend_is_an_error_after_the_events(
    made: Built, tmp_path: Path, begin: Begin, full: bool
) -> None:
    private = tmp_path / "own.sock"
    with running(made, private=private) as native, openai_frontend(private) as (_, port):
        talk = begin(port=port, room=4096 if full else None)
        _relayed(talk)
        if full:
            talk.say(f"sdata: {'x' * (1 << 22)}\n\n")
            talk.client.recv(1)
            eventually(lambda: _is_full(port), "more waits than the client's sockets take")
        native.kill()
        got = b""
        with suppress(ConnectionResetError):
            while not got.endswith(b"0\r\n\r\n") and (data := talk.client.recv(1 << 16)):
                got += data
        assert (b"server_unavailable" in got) is not full
        assert got.endswith(b"0\r\n\r\n") is not full


def _is_full(port: int) -> bool:
    """Return whether a client's connection has unread bytes."""
    line = [one.split() for one in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(one[1].endswith(f":{port:04X}") and int(one[4].split(":")[0], 16) for one in line)


def test_two_hundred_clients_that_disconnect_at_any_point_leak_nothing(
    begin: Begin, openai: tuple[subprocess.Popen[str], int], native: OpenAIProcess, tmp_path: Path
) -> None:
    process, port = openai
    # As many connections as the two processes keep open between requests, of which more could become idle below.
    together = [begin() for _ in range(_MAX_IDLE)]
    for talk in together:
        _relayed(talk)
    for talk in together:
        _ended(talk)
        talk.close()
    eventually(lambda: _active(port) == 0, "nothing is under way")
    pids = (process.pid, native.process.pid)
    before = [descriptors(pid) for pid in pids]
    for number in range(200):
        talk = Talk(port, tmp_path)
        for step in range(number % 5):
            talk.say("sdata: 0\n\n")
            if step == 0:
                talk.head()
            if number % 3:
                talk.read(chunk(b"data: 0\n\n"))
        if number % 7 == 0:
            talk.say(END)
        talk.client.close()
        talk.close()
    eventually(lambda: _active(port) == 0, "all places are free")
    eventually(
        lambda: all(descriptors(pid) <= was for pid, was in zip(pids, before)),
        lambda: f"descriptors: {before} and {[descriptors(pid) for pid in pids]}",
    )
    with connected(port) as client:
        again = begin(client=client)
        _relayed(again)
        _ended(again)
