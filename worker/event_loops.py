"""The event loop of callables that answer many requests at a time."""

from __future__ import annotations

import asyncio
import sys

__all__ = ["new_event_loop"]

#: What patches the loop of asyncio, and refuses any other.
_PATCHES = "nest_asyncio"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: uvloop's where the model's environment has it, as a token costs it half; else asyncio's."""
    if _PATCHES not in sys.modules:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
