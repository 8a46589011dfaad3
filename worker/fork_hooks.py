"""Cleanup in child processes that a callable forks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_forked_children(method: Callable[[], None]) -> None:
    """Call a bound method in every child that this process forks from now on, as long as the method's object exists.

    Python never removes a fork hook. The hook holds the object weakly, so it does not keep a closed one alive.
    """
    reference = weakref.WeakMethod(method)

    def hook() -> None:
        bound = reference()
        if bound is not None:
            bound()

    os.register_at_fork(after_in_child=hook)
