"""The extent of tests: `scripts/test` does less, to finish sooner, than the nightly workflow or pytest by itself."""

from __future__ import annotations

import os

#: The share of the examples to run.
_SHARE = float(os.environ.get("PYTRITON_TESTS_EXAMPLES", "1"))
#: False if tests should leave out what takes long and seldom finds anything.
THOROUGH = _SHARE >= 1


def examples(count: int) -> int:
    """Return how many of `count` examples to run."""
    return max(1, round(count * _SHARE))
