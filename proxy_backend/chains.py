"""Who waits for a call: what keeps calls from going round in a circle for ever, and how their end is seen.

A request that a worker has made carries its chain: the models that wait for it, and their workers. A
chain that comes back to a model is refused when all workers of that model wait in it, which the
dispatcher knows; else it must reach another worker than those, so the proxy of one that waits goes to
another one with the batch (`Circular`).

It also names a *handle*, a descriptor of the proxy that made the call: "process:descriptor:inode". When the
call is given up, or that process ends, the descriptor is closed, which every process of the same user
can see below /proc. Triton 2.51 has no other way to tell a model that a call was given up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import msgspec

from pytriton.ipc import linux, messages
from pytriton.ipc.calls import CHAIN_PARAMETER, HANDLE_PARAMETER, Call, decode_chain
from pytriton.ipc.control import ControlClient, ControlTimeout
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.lane import RequestRef

#: So many models may wait for each other.
_MOST_DEEP = 32
_ASK_S = 10.0


class Circular(Exception):
    """The worker of this proxy waits for the batch at hand, as do those in `waiting`."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__(
            "a call came back to the worker that waits for it; register the model with lanes=1 and more "
            "instances, or break the circle of calls"
        )
        self.waiting = waiting


def check_chain(requests: Sequence[RequestRef], worker: str) -> None:
    """See whether a worker can serve a batch.

    Raises:
        Circular: it waits for it.
    """
    waiting = {
        link.worker
        for request in requests
        if CHAIN_PARAMETER in request.parameters
        for link in decode_chain(request.parameters)
    }
    if worker in waiting:
        raise Circular(sorted(waiting - {""}))


def refused(call: Call, control_endpoint: str) -> str | None:
    """Return why a call must not be made; None if it may."""
    models = [link.model for link in call.chain]
    if len(models) > _MOST_DEEP:
        return f"calls are nested more than {_MOST_DEEP} deep: {' → '.join([*models, call.model])}"
    if not any(link.model == call.model and link.worker for link in call.chain):
        return None
    workers = [link.worker for link in call.chain if link.worker]
    try:
        with ControlClient(control_endpoint) as control:
            question = messages.MayCall(call.model, models, workers)
            verdict = control.ask(question, timeout_s=_ASK_S)
    except (RemoteFailure, ControlTimeout):
        return None  # it is just going: then Triton refuses the call
    return verdict.text if isinstance(verdict, messages.Verdict) and verdict.text else None


class Handle:
    """Shows whether a call is still waited for. Costs nothing until it has a name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._closed = False

    def name(self) -> str:
        """Return it in a form that `has_closed` takes in another process of the same user."""
        with self._lock:
            if self._closed:
                return ""
            self._fd = linux.memfd_create("pytriton-call-handle")
            return f"{os.getpid()}:{self._fd}:{os.fstat(self._fd).st_ino}"

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._closed = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def handles(requests: Sequence[RequestRef]) -> list[str]:
    """Return the name of each request's handle, "" where it has none; nothing if none has one."""
    if not any(HANDLE_PARAMETER in request.parameters for request in requests):
        return []
    return [_handle(request.parameters) for request in requests]


def has_closed(handle: str) -> bool:
    """Whether a handle was closed; False for "", and for what is no handle."""
    parts = handle.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return False
    try:
        return os.stat(f"/proc/{parts[0]}/fd/{parts[1]}").st_ino != int(parts[2])
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a client has made it up


def _handle(parameters: str) -> str:
    try:
        value = msgspec.json.decode(parameters).get(HANDLE_PARAMETER, "")
    except (msgspec.DecodeError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
