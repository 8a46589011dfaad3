"""One request over HTTP, and how long it took."""

from __future__ import annotations

import json
import os
import time
from urllib import request
from urllib.error import HTTPError

_LIMIT_S = 120.0


def ask(address: str, model: str, number: float) -> tuple[float, float]:
    """Ask a model that has an input x and an output y of one number; return its answer, and the seconds it took.

    Raises:
        RuntimeError: it answered with an error; what it said.
    """
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"inputs": [tensor]}).encode()
    began = time.monotonic()
    try:
        with request.urlopen(
            f"http://{address}/v2/models/{model}/infer", body, timeout=_LIMIT_S
        ) as answer:
            said = json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise RuntimeError(f"{error.code}: {error.read().decode(errors='replace')}") from error
    return float(said["outputs"][0]["data"][0]), time.monotonic() - began


def at(seconds: list[float], share: float) -> float:
    """Return a percentile, 0.0 to 1.0, in milliseconds."""
    ranked = sorted(seconds)
    return 1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def load_of_machine() -> str:
    """Say how busy the machine was in the last minutes."""
    return "load of the machine (1, 5, 15 minutes): " + ", ".join(
        f"{one:.1f}" for one in os.getloadavg()
    )
