"""A model that returns the Python version and the environment that run it."""

import sys

import numpy as np

from pytriton import batch


@batch
def versions(x):
    """Return the Python and the environment that run this, and x doubled."""
    said = f"Python {sys.version_info[0]}.{sys.version_info[1]}, prefix {sys.prefix}"
    return {"y": 2 * x, "ran_in": np.array([[said.encode()]] * len(x), dtype=object)}
