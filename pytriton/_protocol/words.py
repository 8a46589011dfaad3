"""Helpers for messages to people."""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Letters whose names begin with a vowel sound, as in "an LGBMClassifier".
_SPELLED_AN = "AEFHILMNORSX"
#: Words that are spelled with a vowel but pronounced with a consonant, and vice versa.
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
    """Make a dataclass suggest the closest keyword when it gets an unknown one.

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
            import difflib  # takes 2 ms, which each worker would pay

            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Valid names: {', '.join(known)}."
            raise TypeError(
                f"{cls.__name__}() got an unexpected keyword argument {unknown!r}. {hint}"
            ) from None

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls
