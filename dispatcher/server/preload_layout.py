"""The models that tritonserver loads before it opens its ports: those with workers, and the gate.

Models that are loaded by then are available to the first request. The *gate* is a model that cannot be loaded.
tritonserver (2.51) is not ready (`/v2/health/ready`) while it has such a model, so the daemon controls its readiness:
to open the gate, it loads the gate with a loadable configuration, then unloads it. Unloading alone would not suffice,
because tritonserver remembers the result of the last load.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol.parameters import STAND_IN_PARAMETER
from pytriton.formats import pbtxt

_log = structlog.get_logger(__name__)

#: The gate's name, unlikely to be that of a user's model.
GATE = "pytriton.starting"
#: A backend that does not exist. tritonserver's index shows its name in the gate's error.
_NOWHERE = "models_are_being_loaded"
_CLOSED = f"""name: "{GATE}"
backend: "{_NOWHERE}"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}]
"""


def lay_out(models: Path, preload: Mapping[str, Mapping[str, Any]], *, gate: bool) -> list[str]:
    """Write the configurations that tritonserver loads at its start; return the names of the models."""
    texts = {name: _as_text(name, config) for name, config in preload.items()}
    if gate:
        make_gate(models)
        texts[GATE] = _CLOSED
    names = []
    for name, text in texts.items():
        if text is not None and (models / name).is_dir():
            (models / name / "config.pbtxt").write_text(text, encoding="utf-8")
            names.append(name)
    return names


def clear(models: Path, names: list[str]) -> None:
    """Remove the configurations once the models are loaded: later load requests carry their own."""
    for name in names:
        (models / name / "config.pbtxt").unlink(missing_ok=True)


def remove_gate(models: Path) -> None:
    """Remove the gate from the repository."""
    shutil.rmtree(models / GATE, ignore_errors=True)


def make_gate(models: Path) -> None:
    """Add the gate to the repository."""
    (models / GATE / "1").mkdir(parents=True, exist_ok=True)


def stand_in(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the configuration of a placeholder model that answers every request with the error `text` (503)."""
    parameters = {**config.get("parameters", {}), STAND_IN_PARAMETER: {"string_value": text}}
    left_out = ("model_warmup", "response_cache", "instance_group")
    kept = {name: value for name, value in config.items() if name not in left_out}
    group = {"kind": "KIND_CPU", "count": 1}
    return {**kept, "instance_group": [group], "parameters": parameters}


def closed_gate() -> dict[str, Any]:
    """Return a configuration of the gate that tritonserver cannot load."""
    return {**harmless(GATE, _NOWHERE), "parameters": {}}


def harmless(name: str, backend: str) -> dict[str, Any]:
    """Return a configuration that tritonserver can load immediately, in any model's directory."""
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {"input": [{**tensor, "name": "x"}], "output": [{**tensor, "name": "y"}]}
    return stand_in({"name": name, "backend": backend, **config}, "nobody is here")


def _as_text(name: str, config: Mapping[str, Any]) -> str | None:
    """Return a configuration as config.pbtxt; None if it cannot be written, so that the model is loaded by request."""
    try:
        return pbtxt.write(config)
    except pbtxt.ConfigFileError as error:
        _log.warning(
            "cannot preload a model; it is loaded after the ports open", model=name, why=str(error)
        )
        return None
