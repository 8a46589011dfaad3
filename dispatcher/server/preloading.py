"""The models that tritonserver loads before it opens its ports: those with workers, and the gate.

Models that are loaded by then are known to the first request that gets in. The *gate* is a model that cannot be loaded.
tritonserver (2.51) is not ready (`/v2/health/ready`) as long as it has such a one, so its readiness is the daemon's to
tell: the gate is opened by loading it, as something that can be loaded, and unloading it. A mere unload would not do:
tritonserver remembers how the last load went.
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

#: The gate's name: what a user's model is hardly called.
GATE = "pytriton.starting"
#: It names a backend that there is not, which the error that tritonserver's index shows for it names, too.
_NOWHERE = "models_are_being_loaded"
_CLOSED = f"""name: "{GATE}"
backend: "{_NOWHERE}"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}]
"""


def lay_out(models: Path, preload: Mapping[str, Mapping[str, Any]], *, gate: bool) -> list[str]:
    """Write what tritonserver loads at its start; return the names of the models."""
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
    """Once they are loaded, remove the files: from then on a configuration comes with the request to load it."""
    for name in names:
        (models / name / "config.pbtxt").unlink(missing_ok=True)


def remove_gate(models: Path) -> None:
    """Let tritonserver not see the gate any more."""
    shutil.rmtree(models / GATE, ignore_errors=True)


def make_gate(models: Path) -> None:
    """Let tritonserver see the gate."""
    (models / GATE / "1").mkdir(parents=True, exist_ok=True)


def stand_in(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the configuration of a model that takes another one's place and tells every client `text` (503)."""
    parameters = {**config.get("parameters", {}), STAND_IN_PARAMETER: {"string_value": text}}
    left_out = ("model_warmup", "response_cache", "instance_group")
    kept = {name: value for name, value in config.items() if name not in left_out}
    group = {"kind": "KIND_CPU", "count": 1}
    return {**kept, "instance_group": [group], "parameters": parameters}


def closed_gate() -> dict[str, Any]:
    """Return a configuration of the gate that tritonserver cannot load."""
    return {**harmless(GATE, _NOWHERE), "parameters": {}}


def harmless(name: str, backend: str) -> dict[str, Any]:
    """Return a configuration that tritonserver loads at once, in the folder of whatever model."""
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {"input": [{**tensor, "name": "x"}], "output": [{**tensor, "name": "y"}]}
    return stand_in({"name": name, "backend": backend, **config}, "nobody is here")


def _as_text(name: str, config: Mapping[str, Any]) -> str | None:
    """Return a configuration as a config.pbtxt; None for one that cannot be written: it is loaded by request."""
    try:
        return pbtxt.write(config)
    except pbtxt.ConfigFileError as error:
        _log.warning("a model is not loaded before the ports are open", model=name, why=str(error))
        return None
