"""Serve callables from a script or a notebook, with PyTriton's API. See docs/how-to/pytriton.md.

Importing this module does not start a server.

Example::

    from pytriton.triton import Triton

    with Triton() as triton:
        triton.bind("linear", infer_fn, inputs=[...], outputs=[...])
        triton.serve()
"""

from __future__ import annotations

import pytriton._linux_only  # noqa: F401
from pytriton.triton.config import TritonConfig
from pytriton.triton.local import Triton
from pytriton.triton.policy import (
    DefaultTritonLifecyclePolicy,
    TritonLifecyclePolicy,
    VertextAILifecyclePolicy,
)
from pytriton.triton.remote import RemoteTriton
from pytriton.triton.security import (
    DEFAULT_PROTECTED_ENDPOINTS,
    TRITON_ACCESS_HEADER,
    VALID_TRITON_ENDPOINTS,
    TritonSecurityConfig,
)

__all__ = [
    "DEFAULT_PROTECTED_ENDPOINTS",
    "TRITON_ACCESS_HEADER",
    "VALID_TRITON_ENDPOINTS",
    "DefaultTritonLifecyclePolicy",
    "RemoteTriton",
    "Triton",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "VertextAILifecyclePolicy",
]
