"""Words of messages for people."""

from __future__ import annotations

#: Letters whose names begin with a vowel, as in "an LGBMClassifier".
_SPELLED_AN = "AEFHILMNORSX"
#: Words that are written with a vowel and spoken with a consonant, and the other way round.
_SPOKEN_A = ("eu", "one", "uint", "uni", "use")
_SPOKEN_AN = ("hour", "hono", "nd")


def with_article(word: str) -> str:
    """Return a name of a type or a format with "a" or "an" before it, as it is spoken.

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
