"""Import guard for modules that need a local daemon: raises ImportError on systems other than Linux.

The clients (`pytriton.client`) run on every system that has Python.
"""

from __future__ import annotations

import sys


def refusal() -> str | None:
    """Return an error message that explains that the daemon needs Linux, and names what works without it; None on Linux."""
    if sys.platform.startswith("linux"):
        return None
    import platform  # imported here because it takes 3 ms, and every command imports this module

    return (
        f"pytriton-daemon serves models on Linux only, but this system is {platform.system()}. On this system, "
        f"use the "
        'clients, which call models on another machine: pytriton.client.ModelClient("grpc://HOST:8001", "MODEL").'
    )


_REFUSAL = refusal()
if _REFUSAL is not None:
    raise ImportError(_REFUSAL)
