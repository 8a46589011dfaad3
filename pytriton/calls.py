"""`infer`, `async_infer`, `stream`, `async_stream`: call other models of the same Triton from a model's callable.

The call goes from the worker to the proxy inside tritonserver, which makes it there: no network, and
tensors in shared memory. Other parts of a worker (pb_utils) call by `begin`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Union

import numpy as np
import numpy.typing as npt

from pytriton._protocol.casting import MASKED, is_masked
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

#: Flags of a request of a sequence (TRITONSERVER_REQUEST_FLAG_SEQUENCE_*).
SEQUENCE_START = 1
SEQUENCE_END = 2


@dataclass(frozen=True)
class ModelCall:
    """A call, as `begin` takes it.

    Args:
        model: its name
        inputs: arrays by name; strings as arrays of bytes, str or object
        outputs: names of the outputs to get; none: all
        version: -1: the newest
        parameters: request parameters for the called model
        request_id: shows in Triton's log and traces
        correlation_id: the sequence's, for models with sequence batching; 0: none
        flags: `SEQUENCE_START`, `SEQUENCE_END` or both
        timeout_us: Triton's request timeout in microseconds, which counts while the request waits in the
            model's queue, where the model's queue policy allows it; 0: none
        stream: the model is decoupled
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
    """An answer: outputs, or an error with the name of Triton's code. `final`: no other one follows.

    The final one of a decoupled model may have neither outputs nor an error. `parameters`: those of the response,
    JSON, or "".
    """

    outputs: dict[str, Array]
    final: bool
    error: str | None = None
    code: str = ""
    parameters: str = ""


class Pending(Protocol):
    """A call under way."""

    def wait(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next answer; None when it has not come in time."""

    async def wait_async(self) -> Delivery:
        """Wait for the next answer; one task at a time."""

    def request_cancel(self) -> None:
        """Ask the model to stop; what it still answers comes, to its end."""

    def cancel(self) -> None:
        """Give it up: it has no more answers. A second time, or after its end, nothing happens."""


class Caller(Protocol):
    """A worker, as seen from here."""

    def begin(self, call: ModelCall) -> Pending:
        """Send a call.

        Raises:
            CallError: it cannot be sent.
            TypeError, ValueError: there is no such input, parameter or id.
        """

    def calls_for_this_thread(self) -> bool:
        """Return whether this thread, or this task, serves a batch of the worker."""


_callers: list[Caller] = []
_pid = 0


def add_caller(caller: Caller) -> None:
    """Make calls by this worker of this process from now on."""
    global _pid
    _pid = os.getpid()
    _callers.append(caller)


def remove_caller(caller: Caller) -> None:
    """The worker has ended."""
    if caller in _callers:
        _callers.remove(caller)


def begin(call: ModelCall) -> Pending:
    """Send a call and return at once; for other parts of a worker.

    Raises:
        PyTritonInvalidOperationError: this process is no worker that serves.
        CallError: it cannot be sent.
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

    Any thread of the callable may call, and several at once. The called model sees a request like any
    client's: with a batch axis if it batches. Outputs are arrays of your own.

    Args:
        model: its name
        inputs: arrays by name, for names that are no Python names or are those of the arguments here
        outputs: names of the outputs to get; none: all
        timeout_s: how long to wait; None: until it has answered. Its work is not undone
        parameters: request parameters for the called model: str, int and bool
        version: of the model; None: the newest
        request_id: shows in Triton's log
        **named: inputs by name

    Raises:
        CallError: the model is not there, refused the request, or failed; `code` tells which.
        CallTimeoutError: it has not answered in time.
        PyTritonInvalidOperationError: not in a worker; use `pytriton.client.ModelClient` there.

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
            raise _too_late(model, timeout_s)
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
    """`infer` as a coroutine: `asyncio.gather` makes several calls at once.

    Example:
        >>> async def both(requests):                                  # doctest: +SKIP
        ...     x = requests[0]["x"]
        ...     a, b = await asyncio.gather(pytriton.async_infer("a", x=x), pytriton.async_infer("b", x=x))
        ...     return [{"y": a["y"] + b["y"]}]
    """
    import asyncio  # not every callable needs it

    call = _call(
        model, inputs, named, outputs, parameters, version, request_id, timeout_s, stream=False
    )
    pending = begin(call)
    try:
        answer = await asyncio.wait_for(pending.wait_async(), timeout_s)
    except asyncio.TimeoutError:
        raise _too_late(model, timeout_s) from None
    finally:
        pending.cancel()
    return _outputs(model, answer)


class StreamCall:
    """The answers of a decoupled model, as they come: an iterator, and an asynchronous one.

    It ends the call when it is closed, when its `with` block ends, or when nothing refers to it any
    longer.
    """

    def __init__(self, model: str, pending: Pending, timeout_s: float | None) -> None:
        self._model = model
        self._pending = pending
        self._timeout_s = timeout_s
        self._ended = False

    def cancel(self) -> None:
        """End the call: there are no more answers, and a model of this daemon is told that nobody waits."""
        self._ended = True
        self._pending.cancel()

    close = cancel

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self

    def __next__(self) -> dict[str, Array]:
        while not self._ended:
            answer = self._pending.wait(self._timeout_s)
            outputs = self._taken(answer)
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
            outputs = self._taken(answer)
            if outputs is not None:
                return outputs
        raise StopAsyncIteration

    def __enter__(self) -> StreamCall:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not self._ended:
            self.cancel()

    def _taken(self, answer: Delivery | None) -> dict[str, Array] | None:
        """Return what an answer holds; None for an end that holds nothing."""
        if answer is None:
            self.cancel()
            raise _too_late(self._model, self._timeout_s)
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
    """Call a decoupled model from a model's callable; return an iterator of its answers.

    Models that are not decoupled give one. The arguments are those of `infer`; `timeout_s` is for each
    answer. The iterator raises `CallError` where the model answers with an error, which ends it.

    Example:
        >>> with pytriton.stream("llm", prompt=prompt) as tokens:      # doctest: +SKIP
        ...     for token in tokens:
        ...         if token["text"][0] == b".":
        ...             break
    """
    call = _call(model, inputs, named, outputs, parameters, version, request_id, None, stream=True)
    return StreamCall(model, begin(call), timeout_s)


#: The same: what `stream` returns can be iterated over by ``for`` and ``async for``.
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
        raise ValueError(f"timeout_s={timeout_s}: give a number above 0, or None to wait for ever")
    if isinstance(outputs, str):
        raise TypeError(f"outputs={outputs!r}: give a list of names")
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


def _too_late(model: str, timeout_s: float | None) -> CallTimeoutError:
    return CallTimeoutError(
        f"call to model {model}: no answer within {timeout_s:g} s (timeout_s)",
        model_name=model,
        code="UNAVAILABLE",
    )


def _caller(model: str) -> Caller:
    if _callers and os.getpid() != _pid:
        raise PyTritonInvalidOperationError(
            f"model {model} cannot be called from here: this process was forked from a worker. Call it in "
            "the worker's own process, and hand over what it answers."
        )
    if len(_callers) == 1:
        return _callers[0]
    for caller in _callers:
        if caller.calls_for_this_thread():
            return caller
    if _callers:
        return _callers[-1]
    raise PyTritonInvalidOperationError(
        f"model {model} cannot be called from here: calls by pytriton.infer() are made by a registered "
        "model's callable while it serves, not while it loads, and not by other programs. Here, use a "
        f'client: pytriton.client.ModelClient("localhost", "{model}").infer_sample(...)'
    )
