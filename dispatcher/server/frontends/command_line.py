"""tritonserver's command line: options of Triton's core, of its frontends, and the user's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._host.install.server_runtime import CLIENT_SHM
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import Options
from pytriton.dispatcher.server import admin_token, cloud_frontends, own_repository
from pytriton.dispatcher.server.endpoints import Endpoint
from pytriton.dispatcher.server.frontend import ServerPlace
from pytriton.dispatcher.server.own_repository import BACKEND

_log = structlog.get_logger(__name__)

#: With this option the core retries a failed load at once, without a pause and without a way to stop it: the load
#: request is never answered, the server does not exit, and the log fills up. The daemon reports the failure instead.
_RETRIES = "model-load-retry-count"
#: With "exit-on-error", a model that fails to load would end the server.
_NOT_PASSED_ON = frozenset({"exit-on-error", _RETRIES})
#: Backends whose models come with a complete configuration.
_COMPLETE = frozenset({BACKEND, NATIVE_BACKEND, "python"})


def arguments(
    config: DaemonConfig,
    place: ServerPlace,
    endpoints: Iterable[Endpoint],
    preload: Sequence[str],
    *,
    vertex: bool,
) -> list[str]:
    """Return the arguments of NVIDIA's executable.

    Args:
        config: the daemon's settings; the user's own options override ours or are added to them
        place: the directories and callbacks that every frontend receives
        endpoints: the endpoints to serve, with resolved ports
        preload: names of models to load before the ports open
        vertex: whether Vertex AI's frontend may start if the options enable it
    """
    options = core_options(config, place, preload)
    options.update(_frontend_options(config, endpoints))
    if CLIENT_SHM in place.runtime.options:
        options[CLIENT_SHM] = "true" if config.allow_client_shm else "false"
    no_vertex = cloud_frontends.vertex_model(config.tritonserver_options) is not None and not vertex
    if no_vertex:
        options["allow-vertex-ai"] = "false"  # on Vertex AI ($AIP_MODE), the default is true
    merge(
        options,
        {
            name: value
            for name, value in users_options(config).items()
            if not (no_vertex and "vertex-ai" in name)
        },
    )
    return [
        f"--{name}={value}" if value else f"--{name}"
        for name, values in options.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def users_options(config: DaemonConfig) -> Options:
    """Return the user's own tritonserver options, without those that are not passed on."""
    given = config.tritonserver_options
    if str(given.get(_RETRIES, "0")) != "0":
        _log.warning(
            "option not passed on to tritonserver: the daemon handles failed loads", option=_RETRIES
        )
    return {name: value for name, value in given.items() if name not in _NOT_PASSED_ON}


def merge(options: Options, users: Options) -> None:
    """Merge the user's own options into ours: they override ours, or are appended where an option may be repeated."""
    for name, value in users.items():
        former = options.get(name)
        given = value if isinstance(value, list) else [value]
        options[name] = [*former, *given] if isinstance(former, list) else value


def core_options(config: DaemonConfig, place: ServerPlace, preload: Sequence[str]) -> Options:
    """Return the options of Triton's core by their command-line names; see `arguments`."""
    options: Options = {
        "model-repository": [str(place.models), *own_repository.cloud(config.model_repository)],
        "model-control-mode": "explicit",
        "backend-directory": str(place.backends),
        "backend-config": [f"python,shm-region-prefix-name={place.shm_prefix}"],
        "exit-timeout-secs": str(max(1, round(config.grace_period_s))),
    }
    # A registered model's configuration is complete. Auto-completion by the proxy would start every stub twice.
    if not config.model_repository or _COMPLETE.issuperset(os.listdir(place.backends)):
        options["disable-auto-complete-config"] = ""
    if preload:
        options["load-model"] = list(preload)
        # Otherwise tritonserver exits if a model, or the gate, cannot be loaded.
        options["exit-on-error"] = "false"
    caches = place.runtime.tree.caches
    if caches is not None:
        options["cache-directory"] = str(caches)
    return options


def _frontend_options(config: DaemonConfig, endpoints: Iterable[Endpoint]) -> Options:
    """Return the options of NVIDIA's frontends: where they listen, and which endpoints require the access token."""
    options: Options = {f"allow-{name}": "false" for name in ("http", "grpc", "metrics")}
    for name, address, port in endpoints:
        options[f"allow-{name}"] = "true"
        options[f"{name}-address"] = address
        options[f"{name}-port"] = str(port)
    options.update(admin_token.restrictions(config))
    return options
