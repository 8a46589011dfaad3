"""Messages of the OpenAI process to the relay, and their descriptors."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
from support.frontend.process import OpenAIProcess
from support.frontend.relayed_stream import END, Begin, chunk, descriptors
from support.real_daemon import eventually


@pytest.mark.parametrize("word", [b"n", b"g"])
def test_without_a_descriptor_nothing_is_relayed(begin: Begin, word: bytes) -> None:
    stream = begin()
    stream.begin()
    stream.say("sone\n\n")
    stream.word(word)
    stream.say("stwo\n\n")
    stream.say(END)
    stream.end()
    heard = stream.hear_end().decode()
    texts = [json.loads(line[6:])["text_output"] for line in heard.splitlines() if "data" in line]
    assert "".join(texts) in (
        "sone\n\nstwo\n\n" + END,
        "sone\n\nstwo\n\n".replace("\n\ns", "\n\n") + END,
    )
    assert "relayed" not in heard


@pytest.mark.parametrize("end", [END, 'e{"message":"x"}', ""], ids=["usage", "refusal", "error"])
def test_a_stream_that_ends_before_the_go_message_is_not_relayed(begin: Begin, end: str) -> None:
    stream = begin()
    for text in ("sfirst\n\n", "sone\n\n", end):
        stream.say(text)
    stream.end()
    heard = stream.hear_end()
    stream_of = heard.index(b"sfirst")
    assert stream_of < heard.index(b"sone")
    assert heard.index(b"sone") < heard.index(
        json.dumps(end[:4])[1:-1].encode() if end else b"has died"
    )
    with suppress(OSError):  # it may have closed the connection
        stream.word(b"g", stream.held.fileno())
    stream.check_returned()


def test_a_first_text_that_is_not_an_event_is_not_relayed(begin: Begin) -> None:
    stream = begin()
    stream.say("s")
    stream.say('e{"message":"x"}')
    stream.end()
    assert b'e{\\"message\\"' in stream.hear_end()


@pytest.mark.parametrize(
    "make",
    [
        lambda: os.open("/dev/null", os.O_RDONLY),
        lambda: os.open("/dev", os.O_PATH),
        lambda: os.open("/dev/zero", os.O_RDWR),
        lambda: socket.socket().detach(),
        lambda: socket.socket(type=socket.SOCK_DGRAM).detach(),
        lambda: socket.create_server(("127.0.0.1", 0)).detach(),
    ],
    ids=["file", "path", "device", "unconnected", "datagram", "listening"],
)
def test_only_client_connections_are_accepted(
    begin: Begin, frontend: OpenAIProcess, make: Callable[[], int]
) -> None:
    stream = begin()
    stream.begin()
    before = descriptors(frontend.process.pid)
    given = make()
    stream.word(b"g", given)
    os.close(given)
    stream.say("sone\n\n")
    stream.hear(b"one\\n\\n")
    eventually(lambda: descriptors(frontend.process.pid) <= before, "it is closed")


@pytest.mark.parametrize("count", [2, 3, 250])
@pytest.mark.parametrize("word", [b"g", b"n", b"s", b"x"])
def test_several_descriptors_end_the_response(
    begin: Begin, frontend: OpenAIProcess, word: bytes, count: int
) -> None:
    stream = begin()
    before = descriptors(frontend.process.pid)
    stream.begin()
    stream.word(word, *[stream.held.fileno()] * count)
    assert stream.is_cancelled()
    stream.check_returned()
    eventually(lambda: descriptors(frontend.process.pid) < before, "all are closed")


def test_without_free_descriptors_nothing_is_relayed(begin: Begin, frontend: OpenAIProcess) -> None:
    stream = begin()
    stream.begin()
    pid = frontend.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
    try:
        stream.word(b"g", stream.held.fileno())
        stream.say("sone\n\n")
        stream.hear(b"one\\n\\n")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    stream.end()
    assert b"relayed" not in stream.hear_end()
    stream.check_returned()


def test_unknown_messages_end_the_response(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.word(b"GET / HTTP/1.1\r\n\r\n")
    stream.hear_end()
    assert stream.is_cancelled()
    stream.check_returned()


def test_a_second_descriptor_is_closed(begin: Begin, frontend: OpenAIProcess) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.read(chunk(b"one\n\n"))
    before = descriptors(frontend.process.pid)
    for word in (b"g", b"n"):
        stream.word(word, stream.held.fileno())
    stream.say("stwo\n\n")
    stream.read(chunk(b"two\n\n"))
    eventually(lambda: descriptors(frontend.process.pid) <= before, "it is closed")
