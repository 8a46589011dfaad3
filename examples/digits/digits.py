"""The handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, split the same way each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Array = npt.NDArray[Any]
MODEL_NAME = "digits"


def load() -> tuple[Array, Array, Array, Array]:
    """Return (training images, held-out images, training labels, held-out labels).

    Images are float32 of shape (n, 64) with values 0 to 16; labels are int64 of shape (n,).
    """
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.astype(np.float32), labels, test_size=0.25, random_state=0, stratify=labels
    )
    training, held_out, training_labels, held_out_labels = split
    return training, held_out, training_labels, held_out_labels
