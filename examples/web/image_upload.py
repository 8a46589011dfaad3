"""An image in, JSON out. Needs Pillow.

$ pytriton-daemon serve image_upload.py
$ pytriton-daemon call describe image=@cat.jpg
$ curl 127.0.0.1:8000/describe -F image=@cat.jpg
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass
class Description:
    width: int
    height: int
    brightness: float


def describe(image: Image.Image) -> Description:
    """Return the size of an image and its mean brightness, from 0 to 1."""
    return Description(*image.size, brightness=float(np.asarray(image.convert("L")).mean() / 255))
