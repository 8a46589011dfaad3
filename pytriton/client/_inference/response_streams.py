"""A request to a decoupled model, and the way of its responses from gRPC's thread to the user's."""

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
from pytriton.client._transport.failures import CallFailed, Kind
from pytriton.client._transport.servers import Server

__all__ = ["ResponseBuffer", "Responses", "Stream", "is_final", "stream_arguments"]

T = TypeVar("T")

#: Responses that may wait for the user. When there are more, gRPC's thread waits, reads no further, and so the
#: server's flow control slows the model down: a slow reader does not fill its memory.
_WAITING = 16

#: Longest wait for the reason why a stream did not begin, in seconds; it is there as a rule.
_REASON_S = 1.0

Response = tuple[Any, Any]


class ResponseBuffer:
    """Hands responses from one thread to another; neither runs far ahead."""

    def __init__(self) -> None:
        self._responses: deque[Response] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._unwanted = False
        #: The last response, once it has been thrown away.
        self.last: Response | None = None

    def put(self, result: Any, error: Any) -> None:
        """Take a response; waits while many are unread. tritonclient calls this in a thread of its own."""
        with self._changed:
            while len(self._responses) >= _WAITING and not (self._closed or self._unwanted):
                self._changed.wait()
            if self._unwanted:
                self._throw_away((result, error))
            elif not self._closed:
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

    def throw_away(self) -> None:
        """Drop all responses up to the last one, because no reader is left."""
        with self._changed:
            self._unwanted = True
            while self._responses:
                self._throw_away(self._responses.popleft())
            self._changed.notify_all()

    def _throw_away(self, response: Response) -> None:
        result, error = response
        if error is not None or is_final(result):
            self.last = response

    def close(self) -> None:
        """Drop what waits, and let neither side wait any longer."""
        with self._changed:
            self._closed = True
            self._responses.clear()
            self._changed.notify_all()


class Stream:
    """A request to a decoupled model: the client sends it and reads its responses one by one.

    Args:
        core: of the client
        prepared: the request
    """

    def __init__(self, core: Core, prepared: Prepared) -> None:
        self.buffer = ResponseBuffer()
        self._core = core
        self._prepared = prepared
        self._server: Server | None = None
        self._client: Any = None  #: tritonclient's, while it is under way
        self._final = False
        self.pid = os.getpid()
        self.closed = False  #: nothing of it is under way any more

    def begin(self, server: Server) -> None:
        """Send the request."""
        self._server = server
        client = self._client = server.connection.client()  # type: ignore[attr-defined]  # of gRPC only
        headers = self._prepared.headers
        _open.add(self)
        # The thread of tritonclient that reads the stream lasts as long as the stream. A program must not wait at its
        # end for responses that nobody reads: threads are daemons where the thread that starts them is one.
        _as_daemon(lambda: client.start_stream(self.buffer.put, headers=headers))
        try:
            client.async_stream_infer(**stream_arguments(self._prepared.arguments))
        except InferenceServerException as error:
            # A stream that could not even begin. Why is told where the responses come.
            with suppress(CallFailed):
                _, told = self.buffer.get(_REASON_S) or (None, None)
                error = told or error
            raise self._failed(error) from None

    def read(self) -> Outputs | None:
        """Return the next response; None at the end."""
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
            self._core.require_open()  # raises: only close() closes a buffer that is read
        result, error = response or (None, None)
        if error is not None:
            raise self._failed(error)
        return result

    def _failed(self, error: Exception) -> Exception:
        return error if self._server is None else self._core.stream_failed(error, self._server)

    def close(self) -> None:
        """End it; a request that is not answered to its end is cancelled. A second time does nothing."""
        client, self._client = self._client, None
        last = self.buffer.last
        final = self._final or (last is not None and last[1] is None)
        self.buffer.close()
        try:
            if client is not None:
                # Only what is not over: tritonserver (2.51) loses track of a stream that is cancelled while it
                # ends, and takes its model for being in use until the grace period of an unregister is over.
                client.stop_stream(cancel_requests=not final)
        finally:
            self.closed = True


class Responses(Iterator[Outputs]):
    """The responses of one request, as the user reads them.

    Its end of life cancels a request that was read in part. One that was never read runs on unread: it was sent to be
    done.

    Args:
        stream: the request, which has been sent
        owner: the client, which is to live as long as this
    """

    def __init__(self, stream: Stream, owner: object) -> None:
        self._stream: Stream | None = stream
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
        """Read no more: cancel the request if it is under way still."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        if self._read:
            self.close()
        elif self._stream is not None:
            self._stream.buffer.throw_away()


#: Streams that were begun and are not forgotten.
_open: weakref.WeakSet[Stream] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Cancel what is under way at the program's end: afterwards nobody can end the threads that read."""
    for stream in list(_open):
        if stream.pid == os.getpid():
            stream.close()


def _as_daemon(work: Callable[[], T]) -> T:
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # the caller's
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def stream_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request, for a stream: the end is to be said, even by an empty response."""
    return {**arguments, "enable_empty_final_response": True}


def is_final(result: Any) -> bool:
    """Return whether no response follows this one."""
    final = result.get_response().parameters.get("triton_final_response")
    return final is not None and bool(final.bool_param)
