"""Serves a typed function with a daemon of this checkout: on its own route, and by Triton's protocols."""

from __future__ import annotations

import os
from typing import Any

import models_work
import ours
import typed_work

from pytriton.daemon import DaemonClient


def register(client: DaemonClient, spec: dict[str, Any]) -> None:
    """Register the function of the specification."""
    name = spec["model"]["name"]
    target = models_work.MODELS.get(name) or getattr(typed_work, name)
    python = os.environ.get("BENCH_PYTHON")
    client.register(target, name, python=python, sys_path=[ours.HERE], progress=False)


if __name__ == "__main__":
    raise SystemExit(ours.run(register))
