"""HAProxy in front of a fleet's nodes: its process, and its configuration generated from the served models.

Belongs here: `layout` (the known state of the nodes), `configuration` and `grpc_calls` (the text, pure), `haproxy`
(the program: found, started, reloaded, queried), `balance` (the loop that follows the nodes). Only HAProxy balances:
it checks health, counts connections and retries; no request passes through Python.
"""

from __future__ import annotations
