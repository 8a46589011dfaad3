"""Frames of HTTP/2, well-formed and malformed, for a gRPC server on 127.0.0.1."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS = 1, 4
#: The value of a SETTINGS frame that closes the windows of new streams.
WINDOW_0 = struct.pack(">HI", 4, 0)
SETTINGS, HEADERS, DATA, RESET, PING, GOAWAY, WINDOW, CONTINUATION = 4, 1, 0, 3, 6, 7, 8, 9


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id)
    return head + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def message(content: bytes, size: int | None = None, *, compressed: bool = False) -> bytes:
    """Return a gRPC message, or its beginning: it announces `size` bytes."""
    return struct.pack(">BI", compressed, len(content) if size is None else size) + content


def data(stream_id: int, content: bytes, flags: int = 0) -> bytes:
    """Return a stream's data in frames of the largest size."""
    pieces = [content[i : i + 16_384] for i in range(0, len(content), 16_384)]
    frames = [frame(DATA, 0, stream_id, piece) for piece in pieces]
    return b"".join(frames) + (frame(DATA, flags, stream_id) if flags else b"")


def open_windows(connection: socket.socket, *streams: int) -> None:
    """Let the server send a gibibyte, on the connection and on these streams."""
    for stream_id in (0, *streams):
        connection.sendall(frame(WINDOW, 0, stream_id, struct.pack(">I", 1 << 30)))


def call(
    stream_id: int,
    path: bytes = b"/echo/Never",
    flags: int = 4,
    timeout: bytes | None = None,
    encoding: bytes | None = None,
) -> bytes:
    block = literal(b":method", b"POST") + literal(b":scheme", b"http") + literal(b":path", path)
    block += literal(b":authority", b"x") + literal(b"content-type", b"application/grpc")
    if timeout is not None:
        block += literal(b"grpc-timeout", timeout)
    if encoding is not None:
        block += literal(b"grpc-encoding", encoding)
    return frame(HEADERS, flags, stream_id, block)


def rest(connection: socket.socket) -> bytes:
    """Return the frames that the server sends until it ends the connection."""
    said = b""
    try:
        while piece := connection.recv(65536):
            said += piece
    except ConnectionResetError:
        pass
    return said


def hello(port: int, settings: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    return connection


def frames(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Read the server's frames: each one's kind and stream."""
    return ((kind, stream) for kind, _, stream, _ in whole_frames(connection))


def read_frames(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Read the server's frames: each one's kind and payload."""
    return ((kind, payload) for kind, _, _, payload in whole_frames(connection))


def whole_frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Read the server's frames: each one's kind, flags, stream and payload.

    It reads the socket directly: a file object would keep the connection open after the test closes it, and a draining
    server waits for its clients.
    """
    came = bytearray()

    def take(size: int) -> bytes:
        while len(came) < size and (piece := connection.recv(1 << 16)):
            came.extend(piece)
        taken = bytes(came[:size])
        del came[:size]
        return taken

    while head := take(9):
        payload = take(int.from_bytes(head[:3], "big"))
        yield head[3], head[4], int.from_bytes(head[5:], "big"), payload


def messages(data: bytes) -> Iterator[bytes]:
    """Split a stream's data into gRPC messages."""
    while data:
        size = int.from_bytes(data[1:5], "big")
        yield data[5 : 5 + size]
        data = data[5 + size :]
