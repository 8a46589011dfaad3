"""When a `Triton` object starts its server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DefaultTritonLifecyclePolicy",
    "TritonLifecyclePolicy",
    "VertextAILifecyclePolicy",
]


@dataclass
class TritonLifecyclePolicy:
    """The moment at which the server starts.

    Args:
        launch_triton_on_startup: at `with Triton() as triton:`; otherwise at `run` or `serve`, after models were
        bound
        local_model_store: accepted for compatibility with PyTriton. A model's configuration is part of the request
        that
            loads it, so no files are written; warm-up and everything else works either way
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
#: Vertex AI lists the models as soon as the server starts. (PyTriton's spelling.)
VertextAILifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)
