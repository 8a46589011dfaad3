"""The `model` that PyTriton's documents call but do not define; a test can make it fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def model(*arrays: Array, **named: Array) -> Any:
    """Return the lengths of texts row by row, or, for named arrays, a dict of their doubles.

    Raises:
        OverflowError: a named array contains a negative number
    """
    if named:
        if any((array < 0).any() for array in named.values()):
            raise OverflowError("the model has lost its mind")
        return {name: 2 * array for name, array in named.items()}
    lengths = [np.vectorize(len, otypes=[np.float32])(array) for array in arrays]
    return np.concatenate(lengths, axis=1)
