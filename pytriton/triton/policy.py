"""The policy that says when a `Triton` object starts its server."""

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
        launch_triton_on_startup: at `with Triton() as triton:`; otherwise at `run` or `serve`, when models are bound
        local_model_store: kept for PyTriton's sake. A model's configuration travels with the request that loads it,
            so there are no files to write; warm-up and all else work either way
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
#: Vertex AI asks which models there are as soon as the server starts. (PyTriton's spelling.)
VertextAILifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)
