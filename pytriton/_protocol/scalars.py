"""Converts numpy scalars, which users often pass instead of a number, a bool or a str."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["for_encoder", "plain"]

_PLAIN = (bool, int, float, str, bytes)


def plain(value: Any) -> Any:
    """Convert a numpy scalar, also inside a list or tuple, to Python's own type. Return all else unchanged.

    Example:
        >>> import numpy as np
        >>> plain((np.int64(1), 8))
        (1, 8)
    """
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    numpy = sys.modules.get("numpy")  # without numpy imported, there are no numpy scalars
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    item = value.item()
    return item if isinstance(item, _PLAIN) else value


def for_encoder(value: Any) -> Any:
    """Convert numpy scalars for a msgspec encoder, as its `enc_hook`.

    Raises:
        TypeError: the value is not a numpy scalar
    """
    found = plain(value)
    if type(found) not in _PLAIN:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return found
