"""The responses of one request to a decoupled model, on their way from gRPC's thread to the user's."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from pytriton.client.failures import CallFailed, Kind

__all__ = ["ResponseBuffer", "is_final", "stream_arguments"]

#: Responses that may wait for the user. When there are more, gRPC's thread waits, reads no further, and so the
#: server's flow control slows the model down: a slow reader does not fill its memory.
_WAITING = 16

Response = tuple[Any, Any]


class ResponseBuffer:
    """Hands responses from one thread to another; neither runs far ahead."""

    def __init__(self) -> None:
        self._responses: deque[Response] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, result: Any, error: Any) -> None:
        """Take a response; waits while many are unread. tritonclient calls this in a thread of its own."""
        with self._changed:
            while len(self._responses) >= _WAITING and not self._closed:
                self._changed.wait()
            if not self._closed:
                self._responses.append((result, error))
                self._changed.notify_all()

    def get(self, timeout_s: float) -> Response | None:
        """Return the next response; None once the buffer is closed.

        Raises:
            CallFailed: none came within the time
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._responses and not self._closed:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise CallFailed(Kind.TIMEOUT, "no response within the time")
            if self._closed:
                return None
            response = self._responses.popleft()
            self._changed.notify_all()
            return response

    def close(self) -> None:
        """Drop what waits, and let neither side wait any longer."""
        with self._changed:
            self._closed = True
            self._responses.clear()
            self._changed.notify_all()


def stream_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request, for a stream: the end is to be said, even by an empty response."""
    return {**arguments, "enable_empty_final_response": True}


def is_final(result: Any) -> bool:
    """Whether no response follows this one."""
    final = result.get_response().parameters.get("triton_final_response")
    return final is not None and bool(final.bool_param)
