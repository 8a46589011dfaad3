"""Register a callable that runs in another virtual environment: python serve.py /path/to/venv"""

import sys

import numpy as np

import pytriton
from pytriton import Tensor, batch


@batch
def versions(x):
    """Answer with the Python and the numpy that run this, and x doubled."""
    said = f"Python {sys.version_info[0]}.{sys.version_info[1]}, prefix {sys.prefix}"
    return {"y": 2 * x, "ran_in": np.array([[said.encode()]] * len(x), dtype=object)}


if __name__ == "__main__":
    pytriton.connect().register(
        versions,
        "versions",
        inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
        outputs=[
            Tensor(name="y", dtype=np.float32, shape=(1,)),
            Tensor(name="ran_in", dtype=bytes, shape=(1,)),
        ],
        python=sys.argv[1],
        replace=True,
    )
