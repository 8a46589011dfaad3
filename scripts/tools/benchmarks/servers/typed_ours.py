"""Serves a typed function with a daemon of this checkout: on its own route, and by Triton's protocols."""

from __future__ import annotations

from typing import Any

import ours
import typed_work

from pytriton.daemon import DaemonClient


def register(client: DaemonClient, spec: dict[str, Any]) -> None:
    """Register the function of the specification."""
    name = spec["model"]["name"]
    client.register(getattr(typed_work, name), name, sys_path=[ours.HERE], progress=False)


if __name__ == "__main__":
    raise SystemExit(ours.run(register))
