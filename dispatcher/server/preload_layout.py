"""Models that tritonserver loads before it opens its ports: those with workers, and the gate.

The first request finds these models loaded. The *gate* is a model that cannot be loaded. While tritonserver (2.51) has
such a model, it reports not ready (`/v2/health/ready`), which lets the daemon control readiness. To open the gate, the
daemon loads the gate model with a valid configuration, then unloads it. Unloading alone would not be enough, because
tritonserver remembers the result of the last load.
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

#: Name of the gate model. It must not be the name of a user's model.
GATE = "pytriton.starting"
#: Name of a backend that does not exist. tritonserver's repository index shows it as the reason why the gate is not
#: loaded.
_MISSING_BACKEND = "models_are_being_loaded"
_CLOSED_GATE = f"""name: "{GATE}"
backend: "{_MISSING_BACKEND}"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}]
"""
#: Interval of polling for the end of an unload, which tritonserver does not report, in seconds.
_POLL_INTERVAL_S = 0.02


def lay_out(models: Path, preload: Mapping[str, Mapping[str, Any]], *, gate: bool) -> list[str]:
    """Write the configurations of the models to preload and, with `gate`, that of a closed gate. Return the names of
    all models whose configuration was written.
    """
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
    """Remove the configurations written by `lay_out`, once the models are loaded. Later load requests contain the
    configuration.
    """
    for name in names:
        (models / name / "config.pbtxt").unlink(missing_ok=True)


def _as_text(name: str, config: Mapping[str, Any]) -> str | None:
    """Return a configuration in the format of config.pbtxt. If that is impossible, log a warning and return None."""
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
    """Return whether the settings require a gate to control tritonserver's readiness."""
    strict = config.tritonserver_options.get("strict-readiness", "true")
    return config.readiness != "server_up" and strict not in ("false", "0")


class GateModels(Protocol):
    """Methods of `TritonServer` that the gate needs. Each raises RemoteFailure on failure."""

    async def load(self, name: str, config: dict[str, Any] | None) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def repository_states(self) -> dict[str, str]: ...


class Gate:
    """Readiness gate made of a model that cannot be loaded while the gate is closed.

    Args:
        models: tritonserver's model repository
        backend: name of a backend that can load a placeholder model
    """

    in_repository = True

    def __init__(self, models: Path, backend: str) -> None:
        self._models = models
        self._backend = backend

    async def open(self, server: GateModels) -> None:
        """Let tritonserver report ready as soon as all its models are ready.

        Raises:
            RemoteFailure: tritonserver refused the request or is not up
        """
        _make_gate_folder(self._models)
        await clear_failure(server, GATE, self._backend)
        # tritonserver is not ready until the gate is unloaded.
        while (await server.repository_states()).get(GATE) in ("READY", "UNLOADING"):
            await asyncio.sleep(_POLL_INTERVAL_S)
        shutil.rmtree(self._models / GATE, ignore_errors=True)

    async def close(self, server: GateModels) -> None:
        """Make tritonserver report not ready, if it is up."""
        _make_gate_folder(self._models)
        unloadable = {**_trivial_config(GATE, _MISSING_BACKEND), "parameters": {}}
        with contextlib.suppress(RemoteFailure):  # expected: a closed gate fails to load
            await server.load(GATE, unloadable)


def _make_gate_folder(models: Path) -> None:
    (models / GATE / "1").mkdir(parents=True, exist_ok=True)


async def clear_failure(server: GateModels, name: str, backend: str) -> None:
    """Make tritonserver forget a failed load, by loading and unloading a placeholder with the same name.

    Raises:
        RemoteFailure: tritonserver refused the request or is not up
    """
    await server.load(name, _trivial_config(name, backend))
    await server.unload(name)


# ── Placeholder models, which load immediately in the directory of any model ─────────────────────


def placeholder(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the configuration of a placeholder that answers every request with the error `text` (status 503)."""
    parameters = {**config.get("parameters", {}), STAND_IN_PARAMETER: {"string_value": text}}
    omitted = ("model_warmup", "response_cache", "instance_group")
    rest = {name: value for name, value in config.items() if name not in omitted}
    group = {"kind": "KIND_CPU", "count": 1}
    return {**rest, "instance_group": [group], "parameters": parameters}


def _trivial_config(name: str, backend: str) -> dict[str, Any]:
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {"input": [{**tensor, "name": "x"}], "output": [{**tensor, "name": "y"}]}
    return placeholder({"name": name, "backend": backend, **config}, "this model does not serve")
