"""Lets an asynchronous callable of a decoupled model send a response while it awaits something."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Optional

__all__ = ["sending"]

#: In the task of a stream: sends what a `yield` would; what yields next waits while there is no room.
sending: ContextVar[Optional[Callable[[Any], None]]] = ContextVar("sending", default=None)
