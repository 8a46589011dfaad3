"""The Python proxy: the part that runs inside tritonserver, in the Python backend's stub process.

tritonserver starts one per model instance when the dispatcher loads the model. The proxy asks the
dispatcher for a lane (Attach), then sends each batch over it and returns the answer.
"""

from __future__ import annotations
