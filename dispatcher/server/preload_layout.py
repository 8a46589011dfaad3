"""The models that tritonserver loads before it opens its ports: those with workers, and the gate.

Models that are loaded by then are available to the first request. The *gate* is a model that cannot be loaded.
tritonserver (2.51) is not ready (`/v2/health/ready`) while it has such a model, so the daemon controls its readiness:
to open the gate, it loads the gate with a loadable configuration, then unloads it. Unloading alone would not suffice,
because tritonserver remembers the result of the last load.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.parameters import STAND_IN_PARAMETER
from pytriton.formats import pbtxt

_log = structlog.get_logger(__name__)

#: The gate's name, unlikely to be that of a user's model.
GATE = "pytriton.starting"
#: A backend that does not exist. tritonserver's index shows its name in the gate's error.
_MISSING_BACKEND = "models_are_being_loaded"
_CLOSED_GATE = f"""name: "{GATE}"
backend: "{_MISSING_BACKEND}"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}]
"""
#: tritonserver emits no event when a model has been unloaded.
_POLL_INTERVAL_S = 0.02


def lay_out(models: Path, preload: Mapping[str, Mapping[str, Any]], *, gate: bool) -> list[str]:
    """Write the configurations that tritonserver loads at its start; return the names of the models."""
    texts = {name: _as_text(name, config) for name, config in preload.items()}
    if gate:
        _make_gate_folder(models)
        texts[GATE] = _CLOSED_GATE
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


def _as_text(name: str, config: Mapping[str, Any]) -> str | None:
    """Return a configuration as config.pbtxt; None if it cannot be written, so that the model is loaded by request."""
    try:
        return pbtxt.write(config)
    except pbtxt.ConfigFileError as error:
        _log.warning(
            "cannot preload a model; it will be loaded after the ports open",
            model=name,
            why=str(error),
        )
        return None


# ── The gate ─────────────────────────────────────────────────────────────────────────────────────


def is_gated(config: DaemonConfig) -> bool:
    """Return whether the daemon controls tritonserver's readiness."""
    strict = config.tritonserver_options.get("strict-readiness", "true")
    return config.readiness != "server_up" and strict not in ("false", "0")


class GateModels(Protocol):
    """The methods of a tritonserver that the gate uses; each raises RemoteFailure."""

    async def load(self, name: str, config: dict[str, Any] | None) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def repository_states(self) -> dict[str, str]: ...


class Gate:
    """A model that keeps tritonserver from being ready while it cannot be loaded.

    Args:
        models: the model repository
        backend: a backend that can load the placeholder
    """

    in_repository = True

    def __init__(self, models: Path, backend: str) -> None:
        self._models = models
        self._backend = backend

    async def open(self, server: GateModels) -> None:
        """Let tritonserver report ready once all other models are.

        Raises:
            RemoteFailure: tritonserver refused the request or is not up.
        """
        _make_gate_folder(self._models)
        await clear_failure(server, GATE, self._backend)
        # tritonserver is not ready until the gate is unloaded.
        while (await server.repository_states()).get(GATE) in ("READY", "UNLOADING"):
            await asyncio.sleep(_POLL_INTERVAL_S)
        shutil.rmtree(self._models / GATE, ignore_errors=True)

    async def close(self, server: GateModels) -> None:
        """Make tritonserver report "not ready". Does nothing if it is not up."""
        _make_gate_folder(self._models)
        unloadable = {**_trivial_config(GATE, _MISSING_BACKEND), "parameters": {}}
        with contextlib.suppress(RemoteFailure):  # expected: a closed gate fails to load
            await server.load(GATE, unloadable)


def _make_gate_folder(models: Path) -> None:
    (models / GATE / "1").mkdir(parents=True, exist_ok=True)


async def clear_failure(server: GateModels, name: str, backend: str) -> None:
    """Clear tritonserver's record of a failed load, which only a successful load does.

    Raises:
        RemoteFailure: tritonserver refused the request or is not up.
    """
    await server.load(name, _trivial_config(name, backend))
    await server.unload(name)


# ── Placeholders, which tritonserver can load immediately, in any model's directory ──────────────


def placeholder(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the configuration of a model that answers every request with the error `text` (503)."""
    parameters = {**config.get("parameters", {}), STAND_IN_PARAMETER: {"string_value": text}}
    omitted = ("model_warmup", "response_cache", "instance_group")
    rest = {name: value for name, value in config.items() if name not in omitted}
    group = {"kind": "KIND_CPU", "count": 1}
    return {**rest, "instance_group": [group], "parameters": parameters}


def _trivial_config(name: str, backend: str) -> dict[str, Any]:
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {"input": [{**tensor, "name": "x"}], "output": [{**tensor, "name": "y"}]}
    return placeholder({"name": name, "backend": backend, **config}, "this model does not serve")
