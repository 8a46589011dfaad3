"""The names of our parameters: of requests, and of the model configuration that tritonserver gets.

The dispatcher writes them, the proxies read them; proxy_backend/native/wire/protocol.h has them from here.
"""

from __future__ import annotations

# ── of a model's configuration ───────────────────────────────────────────────────────────────────

#: Where the dispatcher listens.
CONTROL_PARAMETER = "pytriton_control"
#: Which registration the model is of.
REGISTRATION_PARAMETER = "pytriton_registration"
#: There when a Triton Python model is served: "details", or "streams" when it may answer at any time.
PYTHON_MODEL_PARAMETER = "pytriton_python_model"
#: Of a model with several versions: its requests tell the worker which one they are for.
VERSIONS_PARAMETER = "pytriton_versions"
#: What each request is told, of a model that stands where nobody is to be asked.
STAND_IN_PARAMETER = "pytriton_stand_in"
#: Read by nobody: it makes one configuration differ from another.
MENDED_PARAMETER = "pytriton_mended"

# ── of a request ─────────────────────────────────────────────────────────────────────────────────

#: Of each request to a model that is served in several versions: the version that is asked for.
VERSION_PARAMETER = "pytriton_version"
#: The chain of models that wait for a call, sealed: see calls.py.
CHAIN_PARAMETER = "pytriton_calls"
#: What a client's own parameter of that name is called on its way to the callable.
NO_CHAIN_PARAMETER = "pytriton_not_calls"
#: By which the called model's proxy sees whether anybody still waits.
HANDLE_PARAMETER = "pytriton_waiting"
