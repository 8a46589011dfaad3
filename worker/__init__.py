"""A worker: the process, or thread of the registrant's process, that runs one instance of a callable.

The dispatcher starts boot.py with the registrant's interpreter. The worker sends `WorkerHello` and `WorkerReady` to the
dispatcher, then receives batches from proxies over lanes and answers each on the lane it came from. It imports the
public API and `pytriton._protocol`, never the dispatcher.
"""

from __future__ import annotations
