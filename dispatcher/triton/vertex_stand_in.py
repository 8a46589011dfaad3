"""Vertex AI's frontend starts only when its default model is loaded (Triton 2.51), and a registration needs a server.

So tritonserver starts without that frontend. As soon as the model is served, tritonserver is started once more, with
the frontend, and loads all models before it opens a port: whoever reaches Vertex AI's port reaches the model.
"""

from __future__ import annotations

from collections.abc import Mapping


def wanted(options: Mapping[str, object]) -> str | None:
    """Return the name of the default model that tritonserver's options ask for, None if they ask for none."""
    name = options.get("vertex-ai-default-model")
    return str(name) if name and options.get("allow-vertex-ai") == "true" else None
