"""Send image files and print their digits: python ask.py FILE..."""

import sys
from pathlib import Path

import numpy as np

from pytriton.client import ModelClient

with ModelClient("127.0.0.1:8000", "digit-images") as client:
    for name in sys.argv[1:]:
        answer = client.infer_sample(np.array([Path(name).read_bytes()], dtype=object))
        print(f"{name}: {answer['digit'].item()}")
