"""The daemon: runs tritonserver and the workers, manages the registrations, and routes proxies to workers.

Started by `pytriton-daemon start` (`python -m pytriton.dispatcher`); one per runtime directory.
Accepts control messages from registrants, workers and proxies, and answers each with one reply.
"""

from __future__ import annotations
