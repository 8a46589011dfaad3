"""The Python proxy: runs in a stub process of tritonserver's Python backend, one per model instance.

It gets the address of a worker from the dispatcher (`Attach`), connects a lane to it, sends each batch over the lane,
and returns the answer to tritonserver. It imports only `pytriton._protocol` and what the stub provides.
"""

from __future__ import annotations
