"""Register a callable that runs in another virtual environment: python serve.py /path/to/venv"""

import sys
from pathlib import Path

import numpy as np
from versions import versions

import pytriton
from pytriton import Tensor

if __name__ == "__main__":
    pytriton.connect().register(
        versions,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
        outputs=[
            Tensor(name="y", dtype=np.float32, shape=(1,)),
            Tensor(name="ran_in", dtype=bytes, shape=(1,)),
        ],
        python=sys.argv[1],
        sys_path=[str(Path(__file__).parent.resolve())],
        replace=True,
    )
