"""In-place upgrade of a running daemon, followed by the rolling replacement of its workers and tritonserver.

snapshot.py declares the state that one version leaves for the next. Code all over the dispatcher imports it, so it may
import only what is below runtime, and runtime.logs. takeover.py may import everything below the daemon; the other
modules, everything but the daemon itself.
"""

from __future__ import annotations
