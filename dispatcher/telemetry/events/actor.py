"""The actor on whose behalf the current task runs: known to the task that handles a message and to what it calls.

As a context variable, it is inherited by tasks started in the meantime. So only kinds of events that are requested by
an actor (`Kind.asked`) use it: a worker that crashes an hour later was requested by no one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_who: ContextVar[str] = ContextVar("who asked", default="")


@contextmanager
def acting_for(who: str) -> Iterator[None]:
    """Attribute decisions within the block to `who`, for example "user ann, process 4242 (python train.py)"."""
    token = _who.set(who)
    try:
        yield
    finally:
        _who.reset(token)


def asked_by() -> str:
    """Return the actor of the current task; "" if the daemon acts on its own."""
    return _who.get()
