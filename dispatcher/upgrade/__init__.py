"""The upgrade of a running daemon in place, and the rolling replacement of its workers and server.

snapshot.py is the state that one version leaves for the next; everything that is handed over imports it, so it may
import only what is below runtime, and runtime.logs. The other modules may import everything but the daemon itself.
"""

from __future__ import annotations
