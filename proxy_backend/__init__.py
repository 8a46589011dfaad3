"""The proxy: the part that runs inside tritonserver, in the Python backend's stub process.

Started by tritonserver, one per model instance, when the dispatcher has the model loaded.
Asks the dispatcher for a lane (Attach), then sends each batch over it and returns the answer.
"""

from __future__ import annotations
