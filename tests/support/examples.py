"""How many examples tests of generated data play: `scripts/test` wants an answer soon, and plays fewer."""

from __future__ import annotations

import os

#: Of the whole number, the share that is played.
_SHARE = float(os.environ.get("PYTRITON_TESTS_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return how many of so many examples are to be played."""
    return max(1, round(count * _SHARE))
