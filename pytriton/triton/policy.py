"""Policies that determine when a `Triton` object starts its server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DefaultTritonLifecyclePolicy",
    "TritonLifecyclePolicy",
    "VertextAILifecyclePolicy",
]


@dataclass
class TritonLifecyclePolicy:
    """Determines when a `Triton` object starts its server.

    Args:
        launch_triton_on_startup: True: when the `with` block begins; False: at `run` or `serve`, after models have
            been bound
        local_model_store: has no effect; accepted for compatibility with PyTriton, which writes configuration files
            to a model store. Here the request that loads a model contains its configuration.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
#: Vertex AI lists the models as soon as the server starts, so they are bound first. ("Vertext" is PyTriton's spelling.)
VertextAILifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)
