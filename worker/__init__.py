"""A worker: a process that loads one instance of a registrant's callable and runs its batches.

The dispatcher starts boot.py with the registrant's interpreter and search path. The worker sends `WorkerHello` and
`WorkerReady` to the dispatcher; it receives batches from proxies over lanes, and answers them there.
"""

from __future__ import annotations
