"""The program of tests/native/frontend/http2/grpc_echo.c, called with grpcio."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

from support.frontend.process import nghttp2


class GrpcEcho:
    """The running server."""

    def __init__(self, program: Path, *limits: str, kernel_keeps: int | None = None) -> None:
        """Start the server; each limit is "name=value".

        `kernel_keeps` is the size of the kernel's send buffer for unread answers of a connection; usually it is megabytes.
        """
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            if kernel_keeps is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel_keeps)
            self.port: int = listener.getsockname()[1]
            descriptor = listener.fileno()
            self._process = subprocess.Popen(
                [program, nghttp2(), *limits, str(descriptor)],
                pass_fds=[descriptor],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
            )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", said

    def channel(self, **options: Any) -> grpc.Channel:
        """Connect to it."""
        own = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}
        own["grpc.use_local_subchannel_pool"] = 1
        return grpc.insecure_channel(
            f"127.0.0.1:{self.port}", options=list({**own, **options}.items())
        )

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> dict[str, int]:
        """Stop the server and return its counters; fail if a sanitizer reported anything."""
        self.terminate()
        said, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, self._process.returncode
        words = said.split()
        counts = dict(zip(words[0:8:2], map(int, words[1:8:2])))
        return {**counts, **dict(zip(words[9::3], map(int, words[10::3])))}

    def kill(self) -> None:
        """Kill the server if it is still running."""
        self._process.kill()
        self._process.communicate()


def once(channel: grpc.Channel, call: str, message: bytes, **options: Any) -> bytes:
    """Call /echo/CALL with one message; return its answer."""
    method = channel.unary_unary(f"/echo/{call}", None, None)
    answer: bytes = method(message, **{"timeout": 120, **options})
    return answer


def stream(
    channel: grpc.Channel, call: str, messages: Iterable[bytes], **options: Any
) -> Iterator[bytes]:
    """Call /echo/CALL with a stream of messages; return its answers."""
    method = channel.stream_stream(f"/echo/{call}", None, None)
    answers: Iterator[bytes] = method(iter(messages), timeout=120, **options)
    return answers
