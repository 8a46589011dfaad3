"""HAProxy as the load balancer of a fleet: its process, and its configuration, generated from the served models.

Modules: `layout` (the known state of the nodes), `configuration` and `grpc_calls` (pure functions that generate the
configuration), `haproxy` (finds, starts, reloads and queries the program), `balance` (the loop that polls the nodes).
Only HAProxy does the balancing: it checks health, counts connections and retries. No request passes through Python.
"""

from __future__ import annotations
