"""Scalars of numpy, which users have at hand where a number, a truth value or a text is meant."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["for_encoder", "plain"]

_PLAIN = (bool, int, float, str, bytes)


def plain(value: Any) -> Any:
    """Return Python's own form of a scalar of numpy, also of those in a list or tuple; all else as it is.

    Example:
        >>> import numpy as np
        >>> plain((np.int64(1), 8))
        (1, 8)
    """
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    numpy = sys.modules.get("numpy")  # where nobody has imported it, nobody has a scalar of it
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    item = value.item()
    return item if isinstance(item, _PLAIN) else value


def for_encoder(value: Any) -> Any:
    """Be the `enc_hook` of an encoder of msgspec, which takes no scalar of numpy by itself.

    Raises:
        TypeError: it is something else
    """
    found = plain(value)
    if type(found) not in _PLAIN:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return found
