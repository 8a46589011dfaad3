"""Imported first by what needs a daemon on this machine: raises ImportError where there can be none.

A daemon runs on Linux. The clients (`pytriton.client`) run on every system that has Python.
"""

from __future__ import annotations

import sys


def refusal() -> str | None:
    """Return why this system has no daemon, and what works here; None on Linux."""
    if sys.platform.startswith("linux"):
        return None
    import platform  # takes 3 ms, and each command imports this module

    return (
        f"pytriton-daemon serves models on Linux only, and this system is {platform.system()}. What works here are the "
        'clients, which ask models on another machine: pytriton.client.ModelClient("grpc://HOST:8001", "MODEL").'
    )


_REFUSAL = refusal()
if _REFUSAL is not None:
    raise ImportError(_REFUSAL)
