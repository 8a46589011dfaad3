"""The model "talking" of the fake core (tests/native/frontend/calls/fake_core): the test sends its responses."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from support.frontend.process import OpenAIProcess

_NUMBERS = itertools.count()


def start_talking(folder: Path, request: Callable[[str], object]) -> socket.socket:
    """Send a request with the path of a socket, to which the model connects; return the model's side."""
    path = folder / f"script-{next(_NUMBERS)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        try:
            listener.listen(1)
            listener.settimeout(60)
            request(str(path))
            model, _ = listener.accept()
        finally:
            path.unlink()
    model.settimeout(60)
    return model


def say(model: socket.socket, text: bytes) -> None:
    """Have the model send a text; b"" is an error."""
    model.sendall(struct.pack("=I", len(text)) + text)


def is_cancelled(model: socket.socket) -> bool:
    """Wait until the model's connection ends."""
    with suppress(ConnectionResetError):
        return model.recv(1) == b""
    return True


def private_connection(frontend: OpenAIProcess) -> socket.socket:
    """Return a connection to the frontend's unix socket, which accepts descriptors."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(frontend.private))
    return client
