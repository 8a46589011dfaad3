"""The actor: who has asked for what is done. It is known to the task that acts on a message, and to what it calls.

Tasks that begin meanwhile inherit it, as a context variable is. So only kinds of events that somebody asks for
(`Kind.asked`) take it from here: a worker that crashes an hour later is nobody's wish.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_who: ContextVar[str] = ContextVar("who asked", default="")


@contextmanager
def acting_for(who: str) -> Iterator[None]:
    """For the block, what is decided was asked for by `who`, such as "user ann, process 4242 (python train.py)"."""
    token = _who.set(who)
    try:
        yield
    finally:
        _who.reset(token)


def asked_by() -> str:
    """Return who has asked for what the present task does; "" for what the daemon does by itself."""
    return _who.get()
