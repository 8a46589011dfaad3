"""The tensors of most models in the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton.model_config import Tensor


def tensors(dtype: Any, *names: str) -> list[Tensor]:
    return [Tensor(name=name, dtype=dtype, shape=(-1,)) for name in names]


X, Y = tensors(np.float32, "x"), tensors(np.float32, "y")
ONES = np.ones((1, 2), np.float32)
