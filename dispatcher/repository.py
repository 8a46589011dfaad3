"""tritonserver's model repository: one empty version folder per model, and the configuration that it is loaded with.

A model's code is the backend `pytriton` (the proxy), so its folder holds nothing; its configuration
goes with the load request. Triton insists only that the folder of the version exists.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pytriton.ipc import messages

BACKEND = "pytriton"
#: Parameters that the proxy reads; see proxy_backend/model.py.
CONTROL_PARAMETER = "pytriton_control"
REGISTRATION_PARAMETER = "pytriton_registration"
#: Read by nobody: it makes one configuration differ from another.
MENDED_PARAMETER = "pytriton_mended"


def make_folder(models: Path, spec: messages.ModelSpec) -> None:
    """Make a model's folder with just the version it has."""
    remove_folder(models, spec.name)
    (models / spec.name / str(spec.version)).mkdir(parents=True)


def remove_folder(models: Path, name: str) -> None:
    """Remove a model's folder."""
    shutil.rmtree(models / name, ignore_errors=True)


def triton_config(
    spec: messages.ModelSpec, endpoint: str, registration: str, mended: int = 0
) -> dict[str, Any]:
    """Return the configuration to load a model with: the user's, plus what makes it ours.

    `lanes` proxy instances per worker, on the CPU: devices are the workers' business; a rate limiter
    or host policy that the user gave them stays. Triton keeps the
    instances that it has when nothing but their number differs, so a model whose proxies have to be
    started anew is loaded with another number in `mended`.
    """
    parameters = dict(spec.config.get("parameters", {}))
    parameters[CONTROL_PARAMETER] = {"string_value": endpoint}
    parameters[REGISTRATION_PARAMETER] = {"string_value": registration}
    if mended:
        parameters[MENDED_PARAMETER] = {"string_value": str(mended)}
    given = spec.config.get("instance_group") or [{}]
    return {
        **spec.config,
        "name": spec.name,
        "backend": BACKEND,
        "instance_group": [{**given[0], "kind": "KIND_CPU", "count": spec.instances * spec.lanes}],
        "parameters": parameters,
    }
