"""The number of generated examples per test: `scripts/test` runs fewer, to finish sooner."""

from __future__ import annotations

import os

#: The share of the examples to run.
_SHARE = float(os.environ.get("PYTRITON_TESTS_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return how many of `usual` examples to run."""
    return max(1, round(count * _SHARE))
