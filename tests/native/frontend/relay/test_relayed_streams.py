"""relay/: streams that the frontend writes to clients whose connections the OpenAI process hands over."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import ask, ask_admin, head
from support.frontend.relayed_stream import (
    END,
    Begin,
    Stream,
    chunk,
    descriptors,
    event,
)
from support.frontend.talking_model import private_connection, say
from support.real_daemon import eventually


def test_events_go_to_the_client_and_the_rest_to_the_openai_process(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    for text in ("one", "two ü"):
        stream.say(f"s{event(text).decode()}")
        stream.read(chunk(event(text)))
    stream.say("s")  # a sign of life is nothing to write
    stream.say(f"s{event('a').decode()}{event('b').decode()}")
    stream.read(chunk(event("a") + event("b")))
    stream.say(END)
    stream.end()
    heard = stream.hear_end()
    assert heard.partition(b"\r\n")[2].startswith(b"relayed: 5\n\ndata: ")  # one message
    assert json.dumps(END)[1:-1].encode() in heard
    assert heard.endswith(b"0\r\n\r\n")
    # It is the asker's again, and open.
    stream.held.sendall(b"more")
    stream.read(b"more")
    stream.client.sendall(b"next request")
    assert stream.held.recv(100) == b"next request"


def test_events_wait_for_the_go_message(begin: Begin) -> None:
    stream = begin()
    stream.begin()
    for text in ("one", "two"):
        stream.say(f"s{event(text).decode()}")
    stream.word(b"g", stream.held.fileno())
    # Both, in one chunk or in two: it may come before them.
    got = b""
    while b"two\n\n" not in got:
        got += stream.client.recv(1000)
    assert b"".join(part for part in got.split(b"\r\n") if b"data" in part) == (
        event("one") + event("two")
    )
    stream.end()
    assert b"relayed: 2\n\n" in stream.hear_end()


@pytest.mark.parametrize("keep_alive", [False, True])
def test_nothing_is_relayed_over_tcp(begin: Begin, keep_alive: bool) -> None:
    stream = begin(way=lambda frontend: frontend.connect(), keep_alive=keep_alive)
    stream.say("sfirst\n\n")
    assert b"Relay" not in stream.hear(b"\r\n\r\n")
    stream.word(b"g", stream.held.fileno())  # of which a socket of TCP sends a byte
    stream.say("sone\n\n")
    stream.hear(b"sone\\n\\n")


@pytest.mark.parametrize("reply", [b"", b"n"])
def test_a_pipelined_request_ends_the_stream(begin: Begin, reply: bytes) -> None:
    stream = begin(keep_alive=True)
    stream.begin()
    stream.word(reply + b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert stream.is_cancelled()


def test_the_connection_of_a_relayed_stream_can_be_used_again(begin: Begin) -> None:
    stream = begin(keep_alive=True)
    for _ in range(3):
        stream.hand_over()
        stream.say(END)
        stream.end()
        assert b"relayed: 1\n\n" in stream.hear(b"\r\n0\r\n\r\n")
        asker = stream.asker
        stream = begin(keep_alive=True, way=lambda frontend, asker=asker: asker)


@pytest.mark.parametrize("word", [b"g", b"n", b""])
def test_a_reply_after_the_end_precedes_the_next_request(begin: Begin, word: bytes) -> None:
    stream = begin(keep_alive=True)
    for _ in range(3):
        stream.say("sfirst\n\n")
        stream.say(END)
        stream.end()
        stream.hear(b"\r\n0\r\n\r\n")
        if word:
            stream.word(word, *[stream.held.fileno()] * (word == b"g"))
        asker, held = stream.asker, stream.held
        stream = begin(keep_alive=True, way=lambda frontend, asker=asker: asker)
        held.sendall(b"ours")
    stream.hand_over()


def test_only_a_reply_may_precede_the_next_request(begin: Begin) -> None:
    stream = begin(keep_alive=True)
    stream.hand_over()
    stream.say(END)
    stream.end()
    stream.hear(b"\r\n0\r\n\r\n")
    stream.word(b"gGET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
    stream.hear(b"HTTP/1.1 4")


def test_a_connection_that_is_not_needed_any_more_is_closed_at_once(begin: Begin) -> None:
    stream = begin()
    stream.begin()
    stream.word(b"n")
    stream.say("sone\n\n")
    stream.hear(b"sone\\n\\n")
    stream.word(b"g", stream.held.fileno())
    stream.held.close()
    assert stream.client.recv(1) == b""


def test_a_request_is_not_read_as_a_message_to_a_refused_one(made: Built, tmp_path: Path) -> None:
    """The refused request waits for its model, which is then dropped."""
    reading, writing = os.pipe()
    pending = {
        "names": ["missing"],
        "loading": [],
        "fd": writing,
        "wait_s": 3600,
        "max_waiters": 1,
    }
    with (
        open(reading, "rb") as requested,
        open(writing, "wb"),
        running(
            made, private=tmp_path / "own.sock", pending_models=pending, descriptors=[writing]
        ) as frontend,
        closing(private_connection(frontend)) as asker,
        asker.makefile("rb") as answers,
    ):
        path = "/v2/models/missing/generate_stream"
        asker.sendall(head(f"POST {path}", ["Pytriton-Relay: 0"], b"{}"))
        assert requested.readline() == b"missing\n"
        asker.sendall(head("GET /v2/health/live", ["Connection: close"]))
        for _ in range(3):  # answered by the same loop
            assert ask(frontend, head("GET /v2/health/live"))[0] == 200
        assert ask_admin(frontend, "/admin/forget", {"model": "missing"})[0] == 200
        said = answers.read()
        assert said.startswith(b"HTTP/1.1 404 ")
        assert b"HTTP/1.1 200 " in said


def test_the_connection_of_a_refused_request_can_be_used_again(
    begin: Begin, frontend: OpenAIProcess
) -> None:
    """The refusal may be sent by another thread than the one that reads the next request."""
    asker = private_connection(frontend)
    bodies = [b'{"request":"%b"' % (b"x" * (300 << 10)), b"[]"]
    for body in bodies * 20:
        path = "/v2/models/talking/generate_stream"
        asker.sendall(head(f"POST {path}", ["Pytriton-Relay: 0"], body))
        said = b""
        while b"}" not in said:
            said += asker.recv(1 << 16)
        assert said.startswith(b"HTTP/1.1 400 ")
    stream = begin(keep_alive=True, way=lambda _: asker)
    stream.hand_over()


def test_the_openai_process_takes_the_stream_back(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.read(chunk(b"one\n\n"))
    stream.word(b"s")
    stream.hear(b"relayed: 2\n\n")
    stream.check_returned()
    stream.say("stwo\n\n")  # which is the asker's now
    stream.hear(b"stwo\\n\\n")
    stream.asker.close()
    assert stream.is_cancelled()


def test_a_disconnected_client_cancels_its_stream(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.client.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            stream.say("smore\n\n")
    assert b"lost: " in stream.hear_end()


def _fill(stream: Stream, size: int) -> bytes:
    """Let the model send more than its client's sockets hold; return it as the client receives it."""
    data = event("x" * size)
    stream.say(f"s{data.decode()}")
    stream.hear(b"slow\n\n")
    return chunk(data)


def test_a_late_reader_gets_all_events_before_the_end_is_reported(
    begin: Begin, patient_frontend: OpenAIProcess
) -> None:
    stream = begin(frontend=patient_frontend, room=4096)
    stream.hand_over()
    expected = _fill(stream, 1 << 20)
    stream.say(END)
    stream.end()
    stream.asker.settimeout(0.2)
    with pytest.raises(socket.timeout):  # nothing is reported while bytes are left
        stream.hear(b"relayed")
    stream.asker.settimeout(60)
    stream.read(expected)
    heard = stream.hear_end()
    assert heard.index(b"relayed: 2\n\n") < heard.index(b"completion_tokens")
    assert heard.endswith(b"0\r\n\r\n")
    stream.check_returned()


@pytest.mark.parametrize("ended", [False, True])
def test_a_client_that_does_not_read_is_disconnected(begin: Begin, ended: bool) -> None:
    stream = begin(room=4096)
    stream.hand_over()
    _fill(stream, 1 << 20)
    if ended:
        stream.end()
    stream.hear(b"lost: 2\n\n")  # after `unsent_s`
    assert ended or stream.is_cancelled()
    stream.hear_end()
    with pytest.raises(ConnectionResetError):
        stream.held.recv(1)


@pytest.mark.parametrize("ended", [False, True])
def test_a_stream_withdrawn_within_a_chunk_is_lost(begin: Begin, ended: bool) -> None:
    stream = begin(room=4096)
    stream.hand_over()
    _fill(stream, 1 << 20)
    if ended:
        stream.say(END)
        stream.end()
    stream.word(b"s")
    stream.hear(b"lost: 2\n\n")
    stream.held.close()
    assert len(_all_of(stream.client)) < 1 << 20


def _all_of(client: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            got += data
    return got


@pytest.mark.parametrize("full", [False, True])
def test_a_closed_openai_connection_leaves_the_client_connected(begin: Begin, full: bool) -> None:
    stream = begin(room=4096 if full else None)
    stream.hand_over()
    if full:
        _fill(stream, 1 << 20)
    stream.asker.close()
    assert stream.is_cancelled()
    stream.held.close()  # and nobody else has it
    _all_of(stream.client)


def test_keep_alive_comments_are_sent_during_silence(begin: Begin) -> None:
    stream = begin(pulse_ms=100)
    stream.hand_over()
    stream.read(chunk(b": keep-alive\n\n") * 2)
    stream.say("sone\n\n")
    got = b""
    while b"one" not in got:
        got += stream.client.recv(1000)
    stream.end()
    assert b"relayed: 2\n\n" in stream.hear_end()


def test_an_error_of_the_model_is_reported_by_the_openai_process(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.say("")
    stream.end()
    stream.read(chunk(b"one\n\n"))
    heard = stream.hear_end()
    assert heard.index(b"relayed: 2\n\n") < heard.index(b'{"error":"the worker has died')


def test_bytes_that_are_not_text_are_relayed_unchanged(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    say(stream.model, b"s\xff\xfe\n\n")
    stream.read(chunk(b"\xff\xfe\n\n"))


def test_two_hundred_streams_cut_at_any_point_leak_nothing(
    begin: Begin, frontend: OpenAIProcess, tmp_path: Path
) -> None:
    before = descriptors(frontend.process.pid)
    for number in range(200):
        stream = Stream(frontend, tmp_path)
        steps: list[Callable[[], object]] = [
            partial(stream.say, "sfirst\n\n"),
            partial(stream.hear, b"first\\n\\n"),
            partial(stream.word, b"g", stream.held.fileno()),
            partial(stream.say, "sone\n\n"),
            partial(stream.read, chunk(b"one\n\n")),
            partial(stream.word, b"s"),
            partial(stream.say, END),
            stream.end,
        ]
        for step in steps[: number % (len(steps) + 1)]:
            step()
        for one in [(stream.client, stream.asker), (stream.asker, stream.client)][number % 2]:
            one.close()
        stream.close()
    eventually(lambda: descriptors(frontend.process.pid) <= before, "all descriptors are closed")


def test_shutdown_returns_relayed_streams(made: Built, tmp_path: Path) -> None:
    no_grace = [["exit-timeout-secs", "0"]]
    with running(made, private=tmp_path / "own.sock", options=no_grace) as frontend:
        stream = Stream(frontend, tmp_path)
        stream.hand_over()
        stream.say("sone\n\n")
        stream.read(chunk(b"one\n\n"))
        frontend.process.terminate()
        stream.hear_end()
        assert stream.is_cancelled()
        stream.check_returned()
        stream.close()
        assert frontend.process.wait(60) == 0
