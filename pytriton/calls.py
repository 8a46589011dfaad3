"""Calls from a model's callable to other models of the same Triton: `infer`, `async_infer`, `stream`, `async_stream`.

The worker sends a call to the proxy inside tritonserver, which calls the model there, so that the call needs no
network and its tensors stay in shared memory. Other parts of a worker (pb_utils) use `begin`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

import numpy as np
import numpy.typing as npt

from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.exceptions import CallError, CallTimeoutError, PyTritonInvalidOperationError

__all__ = [
    "Caller",
    "Delivery",
    "ModelCall",
    "Pending",
    "StreamCall",
    "add_caller",
    "async_infer",
    "async_stream",
    "begin",
    "infer",
    "remove_caller",
    "stream",
]

Array = npt.NDArray[Any]
Parameter = Union[str, int, bool]


@dataclass(frozen=True)
class ModelCall:
    """A call to another model; the argument of `begin`.

    Args:
        model: name of the model
        inputs: arrays by name; strings in arrays of dtype bytes, str or object
        outputs: names of the requested outputs; empty: all
        version: version of the model; -1: the latest
        parameters: request parameters for the called model
        request_id: ID of the request in Triton's log and traces
        correlation_id: ID of the request's sequence, for models with sequence batching; 0: none
        flags: 1 at the start of a sequence, 2 at its end, 3 for both (TRITONSERVER_REQUEST_FLAG_SEQUENCE_*)
        timeout_us: maximum wait in the model's queue, in microseconds; 0: none. Takes effect if the model's queue
            policy allows requests to set a timeout.
        stream: whether the model is decoupled
    """

    model: str
    inputs: Mapping[str, Array]
    outputs: Sequence[str] = ()
    version: int = -1
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    stream: bool = False


@dataclass(frozen=True)
class Delivery:
    """A response from a called model: outputs, or an error with the name of Triton's error code.

    `final` marks the last response. The final response of a decoupled model may have neither outputs nor an error.
    `parameters` contains the response parameters as JSON, or "".
    """

    outputs: dict[str, Array]
    final: bool
    error: str | None = None
    code: str = ""
    parameters: str = ""


class Pending(Protocol):
    """A call in flight."""

    def wait(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next response; return None on timeout."""

    async def wait_async(self) -> Delivery:
        """Wait for the next response. Only one task may wait at a time."""

    def request_cancel(self) -> None:
        """Ask the model to stop. Responses that it still sends are delivered."""

    def cancel(self) -> None:
        """Abandon the call: no more responses are delivered. Does nothing if the call has already ended."""


class Caller(Protocol):
    """Interface of a worker that sends the calls made by its callable."""

    def begin(self, call: ModelCall) -> Pending:
        """Send a call.

        Raises:
            CallError: the call cannot be sent.
            TypeError, ValueError: an input, parameter or ID is invalid.
        """

    def calls_for_this_thread(self) -> bool:
        """Return whether this thread or task is processing a batch of this worker."""


_callers: list[Caller] = []
_pid = 0


def add_caller(caller: Caller) -> None:
    """Register a worker of this process that sends calls from now on."""
    global _pid
    _pid = os.getpid()
    _callers.append(caller)


def remove_caller(caller: Caller) -> None:
    """Unregister a worker that has ended."""
    if caller in _callers:
        _callers.remove(caller)


def begin(call: ModelCall) -> Pending:
    """Send a call and return immediately. Used by other parts of a worker.

    Raises:
        PyTritonInvalidOperationError: this process is not a worker that serves a model.
        CallError: the call cannot be sent.
    """
    return _caller(call.model).begin(call)


def infer(
    model: str,
    inputs: Mapping[str, Any] | None = None,
    /,
    *,
    outputs: Sequence[str] = (),
    timeout_s: float | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    version: int | None = None,
    request_id: str = "",
    **named: Any,
) -> dict[str, Array]:
    """Call another model from a model's callable and return its outputs.

    Any thread of the callable may make calls, and several may do so concurrently. The called model receives a request
    like that of any client, so its inputs need a batch axis if it batches. You own the returned arrays.

    Args:
        model: name of the model
        inputs: arrays by name; for names that are not Python identifiers, or are those of arguments of this function
        outputs: names of the requested outputs; empty: all
        timeout_s: maximum wait for the response, in seconds; None: no limit. After a timeout, the
            called model may still process the request.
        parameters: request parameters for the called model; values are str, int or bool
        version: version of the model; None: the latest
        request_id: ID of the request in Triton's log
        **named: inputs by name

    Raises:
        CallError: the model does not exist, rejected the request, or failed; see `CallError.code`
        CallTimeoutError: the model did not respond in time.
        PyTritonInvalidOperationError: this process is not a worker; use `pytriton.client.ModelClient` instead

    Example:
        >>> @batch                                                    # doctest: +SKIP
        ... def classify(image):
        ...     features = pytriton.infer("embed", x=image)["features"]
        ...     return pytriton.infer("head", features=features, timeout_s=2.0)
    """
    call = _call(
        model, inputs, named, outputs, parameters, version, request_id, timeout_s, stream=False
    )
    pending = begin(call)
    try:
        answer = pending.wait(timeout_s)
        if answer is None:
            raise _timeout_error(model, timeout_s)
        return _outputs(model, answer)
    finally:
        pending.cancel()


async def async_infer(
    model: str,
    inputs: Mapping[str, Any] | None = None,
    /,
    *,
    outputs: Sequence[str] = (),
    timeout_s: float | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    version: int | None = None,
    request_id: str = "",
    **named: Any,
) -> dict[str, Array]:
    """Call another model from a coroutine. Arguments, result and errors are those of `infer`.

    Example:
        >>> async def both(requests):                                  # doctest: +SKIP
        ...     x = requests[0]["x"]
        ...     a, b = await asyncio.gather(pytriton.async_infer("a", x=x), pytriton.async_infer("b", x=x))
        ...     return [{"y": a["y"] + b["y"]}]
    """
    import asyncio  # imported here because not every callable needs it

    call = _call(
        model, inputs, named, outputs, parameters, version, request_id, timeout_s, stream=False
    )
    pending = begin(call)
    try:
        answer = await asyncio.wait_for(pending.wait_async(), timeout_s)
    except asyncio.TimeoutError:
        raise _timeout_error(model, timeout_s) from None
    finally:
        pending.cancel()
    return _outputs(model, answer)


class StreamCall:
    """Iterator and asynchronous iterator over the responses of a decoupled model, each a dict of arrays by name.

    The call is cancelled by `close`, at the end of a `with` block, and when the last reference is dropped.
    """

    def __init__(self, model: str, pending: Pending, timeout_s: float | None) -> None:
        self._model = model
        self._pending = pending
        self._timeout_s = timeout_s
        self._ended = False

    def cancel(self) -> None:
        """Cancel the call. No more responses are delivered. If this daemon serves the called model, the model sees
        the cancellation.
        """
        self._ended = True
        self._pending.cancel()

    close = cancel

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self

    def __next__(self) -> dict[str, Array]:
        while not self._ended:
            answer = self._pending.wait(self._timeout_s)
            outputs = self._unwrap(answer)
            if outputs is not None:
                return outputs
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[dict[str, Array]]:
        return self

    async def __anext__(self) -> dict[str, Array]:
        import asyncio

        while not self._ended:
            answer: Delivery | None = None
            with contextlib.suppress(asyncio.TimeoutError):
                answer = await asyncio.wait_for(self._pending.wait_async(), self._timeout_s)
            outputs = self._unwrap(answer)
            if outputs is not None:
                return outputs
        raise StopAsyncIteration

    def __enter__(self) -> StreamCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not self._ended:
            self.cancel()

    def _unwrap(self, answer: Delivery | None) -> dict[str, Array] | None:
        """Return the content of a response; None for an empty final response."""
        if answer is None:
            self.cancel()
            raise _timeout_error(self._model, self._timeout_s)
        if answer.final:
            self.cancel()
        outputs = _outputs(self._model, answer)
        return outputs if outputs or not answer.final else None


def stream(
    model: str,
    inputs: Mapping[str, Any] | None = None,
    /,
    *,
    outputs: Sequence[str] = (),
    timeout_s: float | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    version: int | None = None,
    request_id: str = "",
    **named: Any,
) -> StreamCall:
    """Call a decoupled model from a model's callable and return an iterator over its responses.

    A model that is not decoupled sends one response. The arguments are those of `infer`; `timeout_s` limits the wait
    for each response. If the model responds with an error, the iterator raises `CallError` and ends.

    Example:
        >>> with pytriton.stream("llm", prompt=prompt) as tokens:      # doctest: +SKIP
        ...     for token in tokens:
        ...         if token["text"][0] == b".":
        ...             break
    """
    call = _call(model, inputs, named, outputs, parameters, version, request_id, None, stream=True)
    return StreamCall(model, begin(call), timeout_s)


#: Alias of `stream`, whose result supports both ``for`` and ``async for``.
async_stream = stream


def _call(
    model: str,
    inputs: Mapping[str, Any] | None,
    named: Mapping[str, Any],
    outputs: Sequence[str],
    parameters: Mapping[str, Parameter] | None,
    version: int | None,
    request_id: str,
    timeout_s: float | None,
    *,
    stream: bool,
) -> ModelCall:
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s={timeout_s}: must be a number above 0, or None for no timeout")
    if isinstance(outputs, str):
        raise TypeError(f"outputs={outputs!r}: must be a list of names")
    given = {**(inputs or {}), **named}
    masked = [name for name, value in given.items() if is_masked(value)]
    if masked:
        raise TypeError(f"call to model {model}: input {masked[0]} {MASKED}")
    arrays = {name: np.asarray(value) for name, value in given.items()}
    return ModelCall(
        model=model,
        inputs=arrays,
        outputs=outputs,
        version=-1 if version is None else version,
        parameters=parameters or {},
        request_id=request_id,
        timeout_us=0 if timeout_s is None else max(1, round(timeout_s * 1e6)),
        stream=stream,
    )


def _outputs(model: str, answer: Delivery) -> dict[str, Array]:
    if answer.error is not None:
        text = f"call to model {model}: {answer.error}"
        raise CallError(text, model_name=model, code=answer.code)
    return answer.outputs


def _timeout_error(model: str, timeout_s: float | None) -> CallTimeoutError:
    return CallTimeoutError(
        f"call to model {model}: no response within {timeout_s:g} s (timeout_s)",
        model_name=model,
        code="UNAVAILABLE",
    )


def _caller(model: str) -> Caller:
    if _callers and os.getpid() != _pid:
        raise PyTritonInvalidOperationError(
            f"model {model} cannot be called from here: this process was forked from a worker. Call the model in "
            f"the worker's process, and pass the result to this process."
        )
    if len(_callers) == 1:
        return _callers[0]
    for caller in _callers:
        if caller.calls_for_this_thread():
            return caller
    if _callers:
        return _callers[-1]
    raise PyTritonInvalidOperationError(
        f"model {model} cannot be called from here: pytriton.infer() works only in the callable of a registered "
        "model, and only while that model serves requests; not while it loads, and not in other programs. Use a client "
        f'instead: pytriton.client.ModelClient("localhost", "{model}").infer_sample(...)'
    )
