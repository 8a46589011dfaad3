"""Call chains, which detect circular calls, and call handles, which report cancelled calls and late errors.

A call contains its chain: the models that wait for its answer, and their workers. When a call returns to a model of the
chain, the proxy asks the dispatcher whether all workers of that model are waiting in the chain, and refuses the call if
they are. Otherwise, a worker that is not waiting must serve the call, so the proxy of a waiting worker passes the batch
to another worker (`Circular`).

A call to a decoupled model also contains the name of a *handle*, "process:descriptor:token". The handle is anonymous
memory of the calling proxy, which closes the descriptor when the call is cancelled; it is also closed when that process
exits. The called model's proxy detects this in /proc. If the stream ends with an error, that proxy writes the error to
the handle. Triton 2.51 itself cannot notify a model that a call was cancelled. It also drops an error that follows
responses, so that the caller would wait forever.
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

#: Maximum length of a call chain.
_MAX_DEPTH = 16
_ASK_S = 10.0
_HANDLE = "pytriton-call-handle"
_KEY = os.environ.get(KEY_VARIABLE, "").encode()
_TOKEN_BYTES = 32


def seal_chain(chain: Sequence[Link]) -> str:
    """Encode a chain for a request parameter, sealed with the daemon's key so that clients cannot forge it."""
    return encode_chain(chain, _KEY)


class Circular(Exception):
    """The proxy's worker cannot serve a batch, because it is itself waiting for that batch. `waiting` lists all such
    workers.
    """

    def __init__(self, waiting: list[str]) -> None:
        super().__init__(
            "a call came back to the worker that waits for it; register the model with max_inflight_batches=1 and more "
            "instances, or remove the circular call"
        )
        self.waiting = waiting


def check_chain(requests: list[RequestRef], worker: str) -> None:
    """Check that a worker can serve a batch. Rename chain parameters that are not sealed with the daemon's key.

    Raises:
        Circular: the worker waits for the batch.
    """
    for index, request in enumerate(requests):
        if len(request.parameters) > 2:  # most requests have none, and this runs for every batch
            chain = decode_chain(request.parameters, _KEY)
            # Otherwise, the worker would pass a forged chain on in its calls.
            if not chain and CHAIN_PARAMETER in request.parameters:
                renamed = request.parameters.replace(CHAIN_PARAMETER, NO_CHAIN_PARAMETER)
                requests[index] = msgspec.structs.replace(request, parameters=renamed)
            waiting = {link.worker for link in chain}
            if worker in waiting:
                raise Circular(sorted(waiting - {""}))


def refusal_of(call: Call, control_endpoint: str) -> str | None:
    """Return why a call must be refused; None if it may be made."""
    models = [link.model for link in call.chain]
    if len(models) > _MAX_DEPTH:
        return f"calls are nested more than {_MAX_DEPTH} deep: {' → '.join([*models, call.model])}"
    if not any(link.model == call.model and link.worker for link in call.chain):
        return None
    workers = [link.worker for link in call.chain if link.worker]
    try:
        with closing(ControlClient(control_endpoint)) as control:
            question = messages.MayCall(call.model, models, workers)
            verdict = control.ask(question, timeout_s=_ASK_S)
    except (RemoteFailure, ControlTimeout):
        return None  # the dispatcher is shutting down, and Triton will refuse the call
    return verdict.text if isinstance(verdict, messages.Verdict) and verdict.text else None


def report_waiting(worker: str, models: list[str], control_endpoint: str) -> messages.StuckCalls:
    """Report to the dispatcher which models a worker is waiting for. Return the models that can never answer."""
    try:
        with closing(ControlClient(control_endpoint)) as control:
            question = messages.CallsWait(os.getpid(), worker, models)
            answer = control.ask(question, timeout_s=_ASK_S)
    except (RemoteFailure, ControlTimeout):
        answer = None
    return answer if isinstance(answer, messages.StuckCalls) else messages.StuckCalls([], "")


class Handle:
    """The calling proxy's handle for a call, open while the caller waits. Allocates nothing until `name` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._closed = False

    def name(self) -> str:
        """Create the handle, and return its name for the called model's proxy. Return "" if the handle is closed."""
        with self._lock:
            if self._closed:
                return ""
            token = secrets.token_hex(_TOKEN_BYTES // 2)  # prevents clients from guessing the name
            self._fd = linux.memfd_create(_HANDLE)
            # Not sealed against writing, because the called model's proxy may write an error.
            linux.seal_against_shrinking(self._fd)
            os.write(self._fd, token.encode())
            return f"{os.getpid()}:{self._fd}:{token}"

    def failure(self) -> tuple[str, str] | None:
        """Return the text and the code of the error with which the model ended the stream; None if there was none."""
        with self._lock:
            if self._fd is None:
                return None
            written = os.pread(self._fd, os.fstat(self._fd).st_size, _TOKEN_BYTES)
        if not written:
            return None
        code, _, text = written.decode().partition(" ")
        return text, code

    def close(self) -> None:
        """Close the handle, because the caller is no longer waiting."""
        with self._lock:
            self._closed = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def handles(requests: Sequence[RequestRef]) -> list[str]:
    """Return the handle name of each request, or "" for a request without a handle. Return [] if no request has a
    handle.
    """
    if not any(HANDLE_PARAMETER in request.parameters for request in requests):
        return []
    return [_handle_name(request.parameters) for request in requests]


def has_closed(handle: str) -> bool:
    """Return True if the handle with this name is closed. Return False if the name is empty."""
    if not handle:
        return False
    fd = _open_handle(handle)
    if fd is not None:
        os.close(fd)
    return fd is None


def write_failure(handle: str, text: str, code: str) -> bool:
    """Write a model's error to the caller's handle. Return False if there is no open handle."""
    fd = _open_handle(handle) if handle else None
    if fd is None:
        return False
    try:
        os.pwrite(fd, f"{code} {text}".encode(), _TOKEN_BYTES)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _open_handle(handle: str) -> int | None:
    """Open the handle with this name. Return None if it is closed, or a client invented the name."""
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


def _handle_name(parameters: str) -> str:
    try:
        value = msgspec.json.decode(parameters).get(HANDLE_PARAMETER, "")
    except (msgspec.DecodeError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
