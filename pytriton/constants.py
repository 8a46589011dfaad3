"""Constants under the names and path that PyTriton's users import."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = [
    "DEFAULT_GRPC_PORT",
    "DEFAULT_HTTP_PORT",
    "DEFAULT_METRICS_PORT",
    "DEFAULT_TRITON_STARTUP_TIMEOUT_S",
    "PYTRITON_HOME",
    "TRITON_CONTEXT_FIELD_NAME",
    "pytriton_home",
]

DEFAULT_HTTP_PORT = 8000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002
#: Keyword argument in which `@triton_context` passes the context.
TRITON_CONTEXT_FIELD_NAME = "triton_context"
#: How long `connect` waits for a server that another process starts, in seconds.
DEFAULT_TRITON_STARTUP_TIMEOUT_S = 120


def pytriton_home() -> Path:
    """Return the default parent folder of workspaces: `$PYTRITON_HOME`, or `pytriton` in the user's cache folder.

    `~` and environment variables in `$PYTRITON_HOME` are expanded.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    text = os.environ.get("PYTRITON_HOME") or os.path.join(cache, "pytriton")
    return Path(os.path.expandvars(os.path.expanduser(text)))


#: Value of `pytriton_home()` when this module was imported.
PYTRITON_HOME = pytriton_home()
