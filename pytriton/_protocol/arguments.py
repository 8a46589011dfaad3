"""Helpers that check users' arguments: numpy scalars, sizes in bytes, and the wording of errors."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, TypeVar

_PLAIN = (bool, int, float, str, bytes)


def plain(value: Any) -> Any:
    """Convert numpy scalars, including those in a list or tuple, to Python's own types. Return other values unchanged.

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
    """Convert a numpy scalar to a type that msgspec can encode. Used as the `enc_hook` of an encoder.

    Raises:
        TypeError: the value is not a numpy scalar
    """
    found = plain(value)
    if type(found) not in _PLAIN:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return found


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

#: Describes the values that `parse_size` accepts.
ALLOWED = "a number of bytes, such as 1048576, 64MiB or 1.5GB"


def parse_size(raw: object) -> int:
    """Parse a size such as 4096, "64MiB" or "1.5GB", and return it in bytes. kB is 1000 bytes, KiB is 1024.

    Raises:
        ValueError: `raw` is not a size.
    """
    if isinstance(raw, bool):
        raise ValueError
    if isinstance(raw, int):
        count = raw
    else:
        match = _SIZE.fullmatch(str(raw).strip())
        if match is None:
            raise ValueError
        unit = match.group(2).lower().rstrip("b")
        base = 1024 if unit.endswith("i") else 1000
        count = round(float(match.group(1)) * base ** _POWERS[unit.rstrip("i")])
    if count < 0:
        raise ValueError
    return count


_T = TypeVar("_T")

#: Letters whose names begin with a vowel sound, as in "an LGBMClassifier".
_SPELLED_AN = "AEFHILMNORSX"
#: Beginnings of words that start with a vowel but sound like a consonant, and vice versa.
_SPOKEN_A = ("eu", "one", "uint", "uni", "use")
_SPOKEN_AN = ("hour", "hono", "nd")


def with_article(word: str) -> str:
    """Prepend "a" or "an" to the name of a type or a format, according to its pronunciation.

    Example:
        >>> [with_article(word) for word in ("int", "uint8", "ndarray", "ONNX model", "PCA")]
        ['an int', 'a uint8', 'an ndarray', 'an ONNX model', 'a PCA']
    """
    small = word.lower()
    if word[:2].isupper():
        vowel = word[0] in _SPELLED_AN
    else:
        vowel = small.startswith(_SPOKEN_AN) or (
            small.startswith(tuple("aeiou")) and not small.startswith(_SPOKEN_A)
        )
    return f"{'an' if vowel else 'a'} {word}"


def closest_keywords(cls: type[_T]) -> type[_T]:
    """Make a dataclass's constructor suggest the closest keyword if it gets an unknown one.

    Example:
        >>> @closest_keywords
        ... class Box:
        ...     def __init__(self, width: int = 1) -> None: ...
        >>> Box(widht=2)
        Traceback (most recent call last):
        TypeError: Box() got an unexpected keyword argument 'widht'. Did you mean 'width'?
    """
    init: Any = cls.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            known = list(inspect.signature(init).parameters)[1:]
            unknown = next((name for name in kwargs if name not in known), None)
            if unknown is None:
                raise
            import difflib  # takes 2 ms, which every worker would pay at its start

            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Valid names: {', '.join(known)}."
            raise TypeError(
                f"{cls.__name__}() got an unexpected keyword argument {unknown!r}. {hint}"
            ) from None

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls
