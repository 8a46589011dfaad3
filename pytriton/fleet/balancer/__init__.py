"""HAProxy before the nodes of a fleet: its configuration made of what the nodes serve, and its process.

It belongs here: `layout` (what is known of the nodes), `configuration` and `grpc_calls` (the text, pure), `haproxy`
(the program: found, started, reloaded, asked), `balance` (the loop that follows the nodes). HAProxy alone balances: it
checks health, counts connections and tries again; nothing of a request passes Python.
"""

from __future__ import annotations
