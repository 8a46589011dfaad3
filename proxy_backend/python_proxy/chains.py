"""The call chain, which detects circular calls, and the call handle, which detects cancelled calls.

A worker's request carries its chain: the models that wait for it, and their workers. The proxy refuses a
call that comes back to a model if all workers of that model wait in the chain, which it asks the dispatcher.
Otherwise the call must reach another worker, so the proxy of a waiting worker passes the batch to another
one (`Circular`).

A call of a decoupled model also names a *handle*: anonymous memory of the proxy that made the call, as
"process:descriptor:token". When the call is cancelled, or that process ends, the descriptor is closed, which the called
model's proxy detects in /proc. If the stream ends with an error, that proxy writes the error to the handle.
Triton 2.51 itself cannot notify a model that a call was cancelled, and it drops an error that comes after
answers (the caller waits forever if that is the last response).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import closing

import msgspec

from pytriton._protocol import linux, messages
from pytriton._protocol.calls.call_messages import (
    KEY_VARIABLE,
    Call,
    Link,
    decode_chain,
    encode_chain,
)
from pytriton._protocol.control import ControlClient, ControlTimeout
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.lane_messages import RequestRef
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER, NO_CHAIN_PARAMETER

#: The maximum number of models that wait for each other.
_MAX_DEEP = 16
_ASK_S = 10.0
_HANDLE = "pytriton-call-handle"
_KEY = os.environ.get(KEY_VARIABLE, "").encode()
_TOKEN_BYTES = 32


def sealed(chain: Sequence[Link]) -> str:
    """Return a chain in the form of a request parameter."""
    return encode_chain(chain, _KEY)


class Circular(Exception):
    """The proxy's worker cannot serve the batch, because it waits for it, like the workers in `waiting`."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__(
            "a call came back to the worker that waits for it; register the model with max_inflight_batches=1 and more "
            "instances, or remove the circular call"
        )
        self.waiting = waiting


def check_chain(requests: list[RequestRef], worker: str) -> None:
    """Check that a worker can serve a batch, and rename parameters that are not a chain we sealed.

    Raises:
        Circular: the worker waits for the batch.
    """
    for index, request in enumerate(requests):
        if len(request.parameters) > 2:  # few have any, and this runs for every batch
            chain = decode_chain(request.parameters, _KEY)
            if not chain and CHAIN_PARAMETER in request.parameters:  # the worker would pass it on
                renamed = request.parameters.replace(CHAIN_PARAMETER, NO_CHAIN_PARAMETER)
                requests[index] = msgspec.structs.replace(request, parameters=renamed)
            waiting = {link.worker for link in chain}
            if worker in waiting:
                raise Circular(sorted(waiting - {""}))


def refused(call: Call, control_endpoint: str) -> str | None:
    """Return why a call must not be made; None if it may be made."""
    models = [link.model for link in call.chain]
    if len(models) > _MAX_DEEP:
        return f"calls are nested more than {_MAX_DEEP} deep: {' → '.join([*models, call.model])}"
    if not any(link.model == call.model and link.worker for link in call.chain):
        return None
    workers = [link.worker for link in call.chain if link.worker]
    try:
        with closing(ControlClient(control_endpoint)) as control:
            question = messages.MayCall(call.model, models, workers)
            verdict = control.ask(question, timeout_s=_ASK_S)
    except (RemoteFailure, ControlTimeout):
        return None  # the dispatcher is ending: Triton then refuses the call
    return verdict.text if isinstance(verdict, messages.Verdict) and verdict.text else None


def stuck(worker: str, models: list[str], control_endpoint: str) -> messages.StuckCalls:
    """Report to the dispatcher which models a worker waits for; return those that can never answer."""
    try:
        with closing(ControlClient(control_endpoint)) as control:
            question = messages.CallsWait(os.getpid(), worker, models)
            answer = control.ask(question, timeout_s=_ASK_S)
    except (RemoteFailure, ControlTimeout):
        answer = None
    return answer if isinstance(answer, messages.StuckCalls) else messages.StuckCalls([], "")


class Handle:
    """Indicates whether the caller still waits for a call. Allocates nothing until it has a name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._closed = False

    def name(self) -> str:
        """Create the handle if needed, and return its name for `has_closed` in another process of the same user."""
        with self._lock:
            if self._closed:
                return ""
            token = secrets.token_hex(_TOKEN_BYTES // 2)  # so that clients cannot guess it
            self._fd = linux.memfd_create(_HANDLE)
            # A seal against writing would keep the model from writing its failure.
            linux.seal_against_shrinking(self._fd)
            os.write(self._fd, token.encode())
            return f"{os.getpid()}:{self._fd}:{token}"

    def failure(self) -> tuple[str, str] | None:
        """Return the text and code name of the error that the model ended with; None without an error."""
        with self._lock:
            if self._fd is None:
                return None
            written = os.pread(self._fd, os.fstat(self._fd).st_size, _TOKEN_BYTES)
        if not written:
            return None
        code, _, text = written.decode().partition(" ")
        return text, code

    def close(self) -> None:
        """Close the handle: the caller no longer waits."""
        with self._lock:
            self._closed = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def handles(requests: Sequence[RequestRef]) -> list[str]:
    """Return the name of each request's handle, "" for a request without one; [] if no request has one."""
    if not any(HANDLE_PARAMETER in request.parameters for request in requests):
        return []
    return [_handle(request.parameters) for request in requests]


def has_closed(handle: str) -> bool:
    """Return whether a handle was closed; False for ""."""
    if not handle:
        return False
    fd = _opened(handle)
    if fd is not None:
        os.close(fd)
    return fd is None


def write_failure(handle: str, text: str, code: str) -> bool:
    """Write a model's error to the caller's handle; return False if there is no handle to write to."""
    fd = _opened(handle) if handle else None
    if fd is None:
        return False
    try:
        os.pwrite(fd, f"{code} {text}".encode(), _TOKEN_BYTES)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _opened(handle: str) -> int | None:
    """Open a handle; return None if it was closed, or a client made up the name."""
    process, _, rest = handle.partition(":")
    number, _, token = rest.partition(":")
    if not (process.isdecimal() and number.isdecimal()):
        return None
    path = f"/proc/{process}/fd/{number}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_HANDLE} "):
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.pread(fd, _TOKEN_BYTES, 0) != token.encode():
        os.close(fd)
        return None
    return fd


def _handle(parameters: str) -> str:
    try:
        value = msgspec.json.decode(parameters).get(HANDLE_PARAMETER, "")
    except (msgspec.DecodeError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
