"""The names of our parameters, of requests and of the model configuration passed to tritonserver.

The dispatcher writes them, the proxies read them; proxy_backend/backend/wire/protocol.h is generated from here.
"""

from __future__ import annotations

# ── of a model's configuration ───────────────────────────────────────────────────────────────────

#: The dispatcher's endpoint.
CONTROL_PARAMETER = "pytriton_control"
#: The registration that the model belongs to.
REGISTRATION_PARAMETER = "pytriton_registration"
#: Set for a Triton Python model: "details", or "streams" if it may answer at any time.
PYTHON_MODEL_PARAMETER = "pytriton_python_model"
#: Set for a model with several versions: its requests name the version for the worker.
VERSIONS_PARAMETER = "pytriton_versions"
#: The error returned for each request, for a placeholder model without workers.
STAND_IN_PARAMETER = "pytriton_stand_in"
#: Not read: makes one configuration differ from another.
MENDED_PARAMETER = "pytriton_mended"

# ── of a request ─────────────────────────────────────────────────────────────────────────────────

#: Set on each request to a model served in several versions: the requested version.
VERSION_PARAMETER = "pytriton_version"
#: The chain of models that wait for a call, sealed: see call_chain.py.
CHAIN_PARAMETER = "pytriton_calls"
#: New name of a client's parameter that has one of our names, as passed to the callable.
NO_CHAIN_PARAMETER = "pytriton_not_calls"
#: Lets the called model's proxy see whether the caller is still waiting.
HANDLE_PARAMETER = "pytriton_waiting"
