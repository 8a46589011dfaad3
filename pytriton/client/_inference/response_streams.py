"""Requests to decoupled models, and the buffer that passes responses from gRPC's thread to the user's."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from tritonclient.utils import InferenceServerException

from pytriton.client._inference.core import Core, Prepared
from pytriton.client._inference.tensor_conversion import Outputs, decode
from pytriton.client._transport.failures import CallFailed, FailureKind
from pytriton.client._transport.servers import TritonEndpoint

__all__ = ["ResponseBuffer", "ResponseStream", "Responses", "is_final", "stream_arguments"]

T = TypeVar("T")

#: Maximum number of unread responses. When it is reached, gRPC's thread stops reading, and flow control slows
#: the model down, so that a slow reader does not fill its memory.
_WAITING = 16

#: Maximum wait for the reason why a stream failed to start, which is usually available immediately.
_REASON_S = 1.0

Response = tuple[Any, Any]


class ResponseBuffer:
    """A bounded buffer that passes responses from one thread to another."""

    def __init__(self) -> None:
        self._responses: deque[Response] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._discarding = False
        #: The last response, if it has been discarded.
        self.last: Response | None = None

    def put(self, result: Any, error: Any) -> None:
        """Add a response; block while too many are unread. Called by tritonclient's reader thread."""
        with self._changed:
            while len(self._responses) >= _WAITING and not (self._closed or self._discarding):
                self._changed.wait()
            if self._discarding:
                self._discard((result, error))
            elif not self._closed:
                self._responses.append((result, error))
                self._changed.notify_all()

    def get(self, timeout_s: float) -> Response | None:
        """Return the next response; None once the buffer is closed.

        Raises:
            CallFailed: no response arrived in time
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._responses and not self._closed:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise CallFailed(FailureKind.TIMEOUT, "no response in time")
            if self._closed:
                return None
            response = self._responses.popleft()
            self._changed.notify_all()
            return response

    def discard(self) -> None:
        """Discard all buffered and future responses except the last one."""
        with self._changed:
            self._discarding = True
            while self._responses:
                self._discard(self._responses.popleft())
            self._changed.notify_all()

    def _discard(self, response: Response) -> None:
        result, error = response
        if error is not None or is_final(result):
            self.last = response

    def close(self) -> None:
        """Discard the buffered responses and wake both threads."""
        with self._changed:
            self._closed = True
            self._responses.clear()
            self._changed.notify_all()


class ResponseStream:
    """A request to a decoupled model, whose responses are read one by one.

    Args:
        core: the client's core
        prepared: the request
    """

    def __init__(self, core: Core, prepared: Prepared) -> None:
        self.buffer = ResponseBuffer()
        self._core = core
        self._prepared = prepared
        self._server: TritonEndpoint | None = None
        self._client: Any = None  #: tritonclient's client, while the stream is in flight
        self._final = False
        self.pid = os.getpid()
        self.closed = False  #: set once nothing of the stream is in flight any longer

    def begin(self, server: TritonEndpoint) -> None:
        """Send the request."""
        self._server = server
        client = self._client = server.connection.client()  # type: ignore[attr-defined]  # of gRPC only
        headers = self._prepared.headers
        _open.add(self)
        # tritonclient's reader thread lives as long as the stream. The program must not wait at exit for
        # unread responses, so the reader is started by a daemon thread, which makes it a daemon thread, too.
        _as_daemon(lambda: client.start_stream(self.buffer.put, headers=headers))
        try:
            client.async_stream_infer(**stream_arguments(self._prepared.arguments))
        except InferenceServerException as error:
            # The stream failed to start. The reason arrives in the same way as responses.
            with suppress(CallFailed):
                _, reason = self.buffer.get(_REASON_S) or (None, None)
                error = reason or error
            raise self._failed(error) from None

    def read(self) -> Outputs | None:
        """Return the next response; None at the end of the stream."""
        while not self._final:
            result = self._next()
            self._final = is_final(result)
            if not self._final or result.get_response().outputs:
                return self._core.finish(decode(result), self._prepared)
        return None

    def _next(self) -> Any:
        assert self._server is not None
        try:
            response = self.buffer.get(self._core.settings.deadline_s)
        except CallFailed as late:
            raise self._core.inference_error(late, self._server) from None
        if response is None:
            self._core.require_open()  # raises, because only close() closes a buffer that is being read
        result, error = response or (None, None)
        if error is not None:
            raise self._failed(error)
        return result

    def _failed(self, error: Exception) -> Exception:
        return error if self._server is None else self._core.stream_failed(error, self._server)

    def close(self) -> None:
        """End the stream, and cancel the request if it is unfinished. Does nothing if already closed."""
        client, self._client = self._client, None
        last = self.buffer.last
        final = self._final or (last is not None and last[1] is None)
        self.buffer.close()
        try:
            if client is not None:
                # Cancel only an unfinished stream: tritonserver (2.51) loses track of a stream that is cancelled
                # while it ends, and considers its model in use until the grace period of an unregister
                # expires.
                client.stop_stream(cancel_requests=not final)
        finally:
            self.closed = True


class Responses(Iterator[Outputs]):
    """Iterator over the responses of one request.

    If the iterator is garbage-collected after some responses have been read, the request is cancelled. If no response
    has been read, the request runs to its end.

    Args:
        stream: the request, already sent
        owner: the client, which must stay alive as long as the iterator
    """

    def __init__(self, stream: ResponseStream, owner: object) -> None:
        self._stream: ResponseStream | None = stream
        self._owner = owner
        self._read = False

    def __next__(self) -> Outputs:
        if self._stream is None:
            raise StopIteration
        self._read = True
        try:
            response = self._stream.read()
        except BaseException:
            self.close()
            raise
        if response is None:
            self.close()
            raise StopIteration
        return response

    def close(self) -> None:
        """Stop reading, and cancel the request if it is still in flight."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        if self._read:
            self.close()
        elif self._stream is not None:
            self._stream.buffer.discard()


#: Streams that were started and are still referenced.
_open: weakref.WeakSet[ResponseStream] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Cancel streams in flight at interpreter exit, while their reader threads can still be stopped."""
    for stream in list(_open):
        if stream.pid == os.getpid():
            stream.close()


def _as_daemon(work: Callable[[], T]) -> T:
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raise it in the caller
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def stream_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return tritonclient's arguments for a streaming request that ends with an empty final response."""
    return {**arguments, "enable_empty_final_response": True}


def is_final(result: Any) -> bool:
    """Return whether this is the last response."""
    final = result.get_response().parameters.get("triton_final_response")
    return final is not None and bool(final.bool_param)
