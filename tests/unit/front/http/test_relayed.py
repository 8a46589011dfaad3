"""relay/: streams that the front writes to clients whose connections another process hands over."""

from __future__ import annotations

import array
import json
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.front.process import Built, FrontProcess, running
from support.running import eventually

Way = Callable[[FrontProcess], socket.socket]


def _private(front: FrontProcess) -> socket.socket:
    asker = socket.socket(socket.AF_UNIX)
    asker.settimeout(60)
    asker.connect(str(front.private))
    return asker


def _event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """A stream of the model "talking": the model's side, the asker's, and a client of the asker's."""

    def __init__(
        self,
        front: FrontProcess,
        folder: Path,
        *,
        pulse_ms: int = 0,
        way: Way = _private,
        keep_alive: bool = False,
        room: int | None = None,
    ) -> None:
        self._stack = ExitStack()
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        path = folder / f"script{id(self)}"
        listener.bind(str(path))
        listener.listen(1)
        self.asker = self._stack.enter_context(way(front))
        body = json.dumps({"script": str(path)}).encode()
        head = [
            "POST /v2/models/talking/generate_stream HTTP/1.1",
            "Host: h",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            f"Pytriton-Relay: {pulse_ms}",
            f"Content-Length: {len(body)}",
        ]
        self.asker.sendall("\r\n".join([*head, "", ""]).encode() + body)
        self.model, _ = listener.accept()
        self._stack.enter_context(self.model)
        path.unlink()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.client = self._stack.enter_context(socket.socket())
            if room is not None:
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            self.client.connect(server.getsockname())
            self.held, _ = server.accept()  #: the asker's end of the client's connection
        self._stack.enter_context(self.held)
        if room is not None:
            self.held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        for one in (self.client, self.held):
            one.settimeout(60)
        self._heard = b""

    def say(self, text: str) -> None:
        """Have the model answer a text; "" is an error."""
        data = text.encode()
        self.model.sendall(struct.pack("=I", len(data)) + data)

    def word(self, word: bytes, *descriptors: int) -> None:
        """Say something as the asker."""
        rights = array.array("i", descriptors)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self.asker.sendmsg([word], control)

    def hear(self, end: bytes) -> bytes:
        """Return what the asker gets up to there."""
        while end not in self._heard:
            data = self.asker.recv(1 << 16)
            assert data, f"the answer ended: {self._heard!r}"
            self._heard += data
        at = self._heard.index(end) + len(end)
        heard, self._heard = self._heard[:at], self._heard[at:]
        return heard

    def hear_end(self) -> bytes:
        """Return what the asker gets up to the end."""
        with suppress(ConnectionResetError):
            while data := self.asker.recv(1 << 16):
                self._heard += data
        return self._heard

    def read(self, expected: bytes) -> None:
        """Read exactly that as the client."""
        got = b""
        while len(got) < len(expected):
            data = self.client.recv(min(1 << 16, len(expected) - len(got)))
            assert data, f"the client's connection ended: {got[-200:]!r}"
            got += data
        assert got == expected

    def hand_over(self) -> None:
        """Begin, and hand the client's connection over; it has got an event then."""
        self.say("sfirst\n\n")
        head = self.hear(b"\r\n\r\n")
        assert b"Pytriton-Relay: yes\r\n" in head
        self.hear(b"\n\n\r\n")
        self.word(b"g", self.held.fileno())
        self.say("sbegun\n\n")
        self.read(_chunk(b"begun\n\n"))

    def end(self) -> None:
        """The model has nothing more to say."""
        self.model.shutdown(socket.SHUT_WR)

    def is_cancelled(self) -> bool:
        """Wait for the end of the model's connection."""
        with suppress(ConnectionResetError):
            return self.model.recv(1) == b""
        return True

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def front(made: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    limits = {"unsent_bytes": 1 << 16, "unsent_s": 2}
    folder = tmp_path_factory.mktemp("relay")
    with running(made, limits, private=folder / "own.sock") as front:
        descriptors = _descriptors(front)
        yield front
        eventually(lambda: _descriptors(front) <= descriptors, "all descriptors are closed")


def _descriptors(front: FrontProcess) -> int:
    return len(os.listdir(f"/proc/{front.process.pid}/fd"))


@pytest.fixture
def begin(front: FrontProcess, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Stream:
            stream = Stream(options.pop("front", front), tmp_path, **options)
            stack.callback(stream.close)
            return stream

        yield make


Begin = Callable[..., Stream]
END = 'u{"completion_tokens":3}\ndata: end\n\n'


def test_events_go_to_the_client_and_the_rest_to_the_asker(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    for text in ("one", "two ü"):
        stream.say(f"s{_event(text).decode()}")
        stream.read(_chunk(_event(text)))
    stream.say("s")  # a sign of life is nothing to write
    stream.say(f"s{_event('a').decode()}{_event('b').decode()}")
    stream.read(_chunk(_event("a") + _event("b")))
    stream.say(END)
    stream.end()
    heard = stream.hear_end()
    assert heard.startswith(_chunk(b"relayed: 5\n\n"))
    assert json.dumps(END)[1:-1].encode() in heard
    assert heard.endswith(b"0\r\n\r\n")
    # It is the asker's again, and open.
    stream.held.sendall(b"more")
    stream.read(b"more")
    stream.client.sendall(b"next request")
    assert stream.held.recv(100) == b"next request"


def test_events_wait_for_the_word(begin: Begin) -> None:
    stream = begin()
    stream.say("sfirst\n\n")
    stream.hear(b"first\\n\\n")
    for text in ("one", "two"):
        stream.say(f"s{_event(text).decode()}")
    stream.word(b"g", stream.held.fileno())
    # Both, in one chunk or in two: it may come before them.
    got = b""
    while b"two\n\n" not in got:
        got += stream.client.recv(1000)
    assert b"".join(part for part in got.split(b"\r\n") if b"data" in part) == (
        _event("one") + _event("two")
    )
    stream.end()
    assert b"relayed: 2\n\n" in stream.hear_end()


@pytest.mark.parametrize("word", [b"n", b"g"])
def test_without_a_descriptor_all_goes_to_the_asker(begin: Begin, word: bytes) -> None:
    stream = begin()
    stream.say("sfirst\n\n")
    stream.hear(b"first\\n\\n")
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
def test_an_end_before_the_word_sends_all_to_the_asker(begin: Begin, end: str) -> None:
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
    stream.held.sendall(b"ours")
    stream.read(b"ours")


def test_a_first_text_that_is_no_event_leaves_all_as_it_is(begin: Begin) -> None:
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
def test_what_is_no_clients_connection_is_not_written_to(
    begin: Begin, front: FrontProcess, make: Callable[[], int]
) -> None:
    stream = begin()
    stream.say("sfirst\n\n")
    stream.hear(b"first\\n\\n")
    before = _descriptors(front)
    given = make()
    stream.word(b"g", given)
    os.close(given)
    stream.say("sone\n\n")
    stream.hear(b"one\\n\\n")
    eventually(lambda: _descriptors(front) == before, "it is closed")


@pytest.mark.parametrize("count", [2, 3, 250])
@pytest.mark.parametrize("word", [b"g", b"n", b"s", b"x"])
def test_several_descriptors_end_the_answer(
    begin: Begin, front: FrontProcess, word: bytes, count: int
) -> None:
    stream = begin()
    before = _descriptors(front)
    stream.say("sfirst\n\n")
    stream.hear(b"first\\n\\n")
    stream.word(word, *[stream.held.fileno()] * count)
    assert stream.is_cancelled()
    stream.held.sendall(b"ours")
    stream.read(b"ours")
    eventually(lambda: _descriptors(front) < before, "all are closed")


def test_where_no_descriptor_is_left_all_goes_to_the_asker(
    begin: Begin, front: FrontProcess
) -> None:
    stream = begin()
    stream.say("sfirst\n\n")
    stream.hear(b"first\\n\\n")
    pid = front.process.pid
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
    stream.held.sendall(b"ours")
    stream.read(b"ours")


def test_words_that_are_none_end_the_answer(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.word(b"GET / HTTP/1.1\r\n\r\n")
    stream.hear_end()
    assert stream.is_cancelled()
    stream.held.sendall(b"ours")
    stream.read(b"ours")


def test_a_second_descriptor_is_closed(begin: Begin, front: FrontProcess) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.read(_chunk(b"one\n\n"))
    before = _descriptors(front)
    for word in (b"g", b"n"):
        stream.word(word, stream.held.fileno())
    stream.say("stwo\n\n")
    stream.read(_chunk(b"two\n\n"))
    eventually(lambda: _descriptors(front) == before, "it is closed")


@pytest.mark.parametrize("keep_alive", [False, True])
def test_over_tcp_nothing_is_relayed(begin: Begin, keep_alive: bool) -> None:
    stream = begin(way=lambda front: front.connect(), keep_alive=keep_alive)
    stream.say("sfirst\n\n")
    assert b"Relay" not in stream.hear(b"\r\n\r\n")
    stream.word(b"g", stream.held.fileno())  # of which a socket of TCP sends a byte
    stream.say("sone\n\n")
    stream.hear(b"sone\\n\\n")


def test_with_another_request_behind_it_nothing_is_relayed(begin: Begin) -> None:
    stream = begin(keep_alive=True)
    stream.say("sfirst\n\n")
    assert b"Relay" not in stream.hear(b"\r\n\r\n")


def test_the_asker_takes_it_back(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.read(_chunk(b"one\n\n"))
    stream.word(b"s")
    stream.hear(b"relayed: 2\n\n")
    stream.held.sendall(b"ours")
    stream.read(b"ours")
    stream.say("stwo\n\n")  # which is the asker's now
    stream.hear(b"stwo\\n\\n")
    stream.asker.close()
    assert stream.is_cancelled()


def test_a_client_that_goes_cancels_its_stream(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.client.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            stream.say("smore\n\n")
    assert b"lost: " in stream.hear_end()


def _fill(stream: Stream, size: int) -> bytes:
    """Have more said than its client's sockets hold; return it as the client gets it."""
    data = _event("x" * size)
    stream.say(f"s{data.decode()}")
    stream.hear(b"slow\n\n")
    return _chunk(data)


def test_a_client_that_reads_late_gets_all_of_it_before_the_end(begin: Begin) -> None:
    stream = begin(room=4096)
    stream.hand_over()
    expected = _fill(stream, 1 << 20)
    stream.say(END)
    stream.end()
    stream.asker.settimeout(0.2)
    with pytest.raises(socket.timeout):  # the asker is not told yet: bytes are left
        stream.hear(b"relayed")
    stream.asker.settimeout(60)
    stream.read(expected)
    heard = stream.hear_end()
    assert heard.index(b"relayed: 2\n\n") < heard.index(b"completion_tokens")
    assert heard.endswith(b"0\r\n\r\n")
    stream.held.sendall(b"ours")
    stream.read(b"ours")


@pytest.mark.parametrize("ended", [False, True])
def test_a_client_that_does_not_read_is_given_up(begin: Begin, ended: bool) -> None:
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
def test_what_is_taken_back_in_the_middle_of_a_chunk_is_lost(begin: Begin, ended: bool) -> None:
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
def test_an_asker_that_goes_leaves_the_client_as_it_is(begin: Begin, full: bool) -> None:
    stream = begin(room=4096 if full else None)
    stream.hand_over()
    if full:
        _fill(stream, 1 << 20)
    stream.asker.close()
    assert stream.is_cancelled()
    stream.held.close()  # and nobody else has it
    _all_of(stream.client)


def test_a_silent_stream_has_comments(begin: Begin) -> None:
    stream = begin(pulse_ms=100)
    stream.hand_over()
    stream.read(_chunk(b": keep-alive\n\n") * 2)
    stream.say("sone\n\n")
    got = b""
    while b"one" not in got:
        got += stream.client.recv(1000)
    stream.end()
    assert b"relayed: 2\n\n" in stream.hear_end()


def test_an_error_of_the_model_is_the_askers_to_tell(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    stream.say("sone\n\n")
    stream.say("")
    stream.end()
    stream.read(_chunk(b"one\n\n"))
    heard = stream.hear_end()
    assert heard.index(b"relayed: 2\n\n") < heard.index(b'{"error":"the worker has died')


def test_bytes_that_are_no_text_go_as_they_are(begin: Begin) -> None:
    stream = begin()
    stream.hand_over()
    data = b"s\xff\xfe\n\n"
    stream.model.sendall(struct.pack("=I", len(data)) + data)
    stream.read(_chunk(data[1:]))


def test_two_hundred_streams_cut_anywhere_leave_nothing(
    begin: Begin, front: FrontProcess, tmp_path: Path
) -> None:
    before = _descriptors(front)
    for number in range(200):
        stream = Stream(front, tmp_path)
        steps: list[Callable[[], object]] = [
            partial(stream.say, "sfirst\n\n"),
            partial(stream.hear, b"first\\n\\n"),
            partial(stream.word, b"g", stream.held.fileno()),
            partial(stream.say, "sone\n\n"),
            partial(stream.read, _chunk(b"one\n\n")),
            partial(stream.word, b"s"),
            partial(stream.say, END),
            stream.end,
        ]
        for step in steps[: number % (len(steps) + 1)]:
            step()
        for one in [(stream.client, stream.asker), (stream.asker, stream.client)][number % 2]:
            one.close()
        stream.close()
    eventually(lambda: _descriptors(front) <= before, "all descriptors are closed")


def test_the_end_of_the_server_gives_streams_back(made: Built, tmp_path: Path) -> None:
    no_grace = [["exit-timeout-secs", "0"]]
    with running(made, private=tmp_path / "own.sock", options=no_grace) as front:
        stream = Stream(front, tmp_path)
        stream.hand_over()
        stream.say("sone\n\n")
        stream.read(_chunk(b"one\n\n"))
        front.process.terminate()
        stream.hear_end()
        assert stream.is_cancelled()
        stream.held.sendall(b"ours")
        stream.read(b"ours")
        stream.close()
        assert front.process.wait(60) == 0
