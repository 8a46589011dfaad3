"""Masked arrays, whose masked values clients would receive."""

from __future__ import annotations

import numpy as np

from pytriton._protocol.numpy_types import is_masked


def test_masked_arrays_are_found_in_lists_too() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    assert is_masked(masked)
    assert is_masked(masked[1])
    assert is_masked([1, (2, [masked])])
    assert not is_masked([np.arange(3), 1, "text", None])
