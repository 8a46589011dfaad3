"""Settings document that the native frontend reads when it starts, in the format of startup/settings.h."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import structlog

from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.frontend_choice import FRONTENDS, INWARD
from pytriton._host.settings.limits import limits_for, limits_of
from pytriton._host.settings.triton_options import Options
from pytriton._protocol import linux
from pytriton._protocol.parameters import ACCESS_HEADER
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.frontend import PendingModels, ServerPlace
from pytriton.dispatcher.server.frontends import triton_frontend

_log = structlog.get_logger(__name__)

#: Number of processors from which a second thread for reading requests pays off.
_SEVERAL_PROCESSORS = 4

Tls = Optional[dict[str, Any]]


class Listening(NamedTuple):
    """Listening socket of the native frontend.

    Attributes:
        protocol: "http", "grpc", "metrics", "admin", "handover", "sagemaker" or "vertex_ai"
        listener: the socket
        tls: certificate files; None without TLS
        path: path of a unix socket; None for TCP
        relays: whether its clients are the daemon's own processes, which may ask to relay a response to another
            connection
    """

    protocol: str
    listener: socket.socket
    tls: Tls
    path: Path | None = None
    relays: bool = False

    def close(self) -> None:
        """Close the socket in this process. Processes that have inherited it keep listening."""
        self.listener.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def tls(config: DaemonConfig) -> dict[str, Tls]:
    """Return the certificate files of each endpoint that uses TLS, by endpoint: "http" or "grpc"."""
    found: dict[str, Tls] = {}
    if config.http_certificate is not None:
        authorities = config.http_client_authorities
        found["http"] = _files(
            config.http_certificate, config.http_key, authorities, mutual=authorities is not None
        )
    if grpc_tls.uses_tls(config):
        names = ("grpc-server-cert", "grpc-server-key", "grpc-root-cert")
        certificate, key, root = (config.tritonserver_options.get(name) for name in names)
        found["grpc"] = _files(certificate, key, root, mutual=grpc_tls.is_mutual(config))
    return found


def document(
    config: DaemonConfig,
    place: ServerPlace,
    program: NativeProgram,
    listening: Sequence[Listening],
    preload: Sequence[str],
    *,
    gated: bool,
    waiting: bool,
    ready_fd: int,
    regions_fd: int | None = None,
    pending: dict[str, Any] | None = None,
    routes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings document.

    Args:
        config: the daemon's settings
        place: directories and callbacks
        program: the frontend's executable and libraries
        listening: sockets to accept connections from
        preload: names of models to load before it accepts connections
        gated: whether it reports not ready until the daemon opens the gate
        waiting: whether it accepts clients' connections only when the daemon requests it
        ready_fd: descriptor to write to once it accepts connections
        regions_fd: descriptor of the table of clients' shared memory regions
        pending: result of `pending_models`; None if no request can wait
        routes: routes to serve alongside Triton's API; None if there are none
    """
    return {
        "core": str(program.core),
        "libraries": program.libraries,
        "options": _core_options(config, place, preload),
        "response_cache_bytes": config.response_cache_size,
        "loops": 2 if (os.cpu_count() or 1) >= _SEVERAL_PROCESSORS else 1,
        "listen": [
            {
                "fd": one.listener.fileno(),
                "protocol": one.protocol,
                "tls": one.tls,
                "relays": one.relays,
            }
            for one in listening
        ],
        "limits": _limits(config),
        "restricted": _restricted(config),
        "forward": {
            name: config.tritonserver_options.get(f"{name}-header-forward-pattern")
            for name in ("http", "grpc")
        },
        **cloud_frontends.cloud_settings(config.tritonserver_options, os.environ),
        "not_ready": gated,
        "not_accepting": waiting,
        "ready_fd": ready_fd,
        "regions_fd": regions_fd,
        "pending_models": pending,
        "routes": routes,
    }


def pending_models(config: DaemonConfig, models: PendingModels, descriptor: int) -> dict[str, Any]:
    """Return the part of the document with the models that requests may wait for.

    Args:
        models: these models
        descriptor: descriptor on which to report the name of each model that a request waits for
    """
    return {
        "names": [*models.lazy, *models.loading],
        "loading": models.loading,
        "fd": descriptor,
        "wait_s": max(1, round(config.resume_timeout_s)),
        "max_waiters": config.resume_queue_size,
    }


def _core_options(
    config: DaemonConfig, place: ServerPlace, preload: Sequence[str]
) -> list[list[str]]:
    options: Options = triton_frontend.core_options(config, place, preload)
    options["allow-metrics"] = "true" if config.allow_metrics else "false"
    users = {
        name: value
        for name, value in triton_frontend.users_options(config).items()
        if not name.startswith(FRONTENDS)
    }
    ignored = INWARD.intersection(config.tritonserver_options)
    if ignored:
        _log.info(
            "options ignored: the native frontend does not have the pools or threads that they configure",
            ignored=sorted(ignored),
        )
    triton_frontend.merge(options, users)
    return [
        [name, value]
        for name, values in options.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def _limits(config: DaemonConfig) -> dict[str, float]:
    limits = limits_of(config.frontend_limit)
    usual = limits_for(linux.total_memory())
    largest = config.tritonserver_options.get("http-max-input-size")
    if largest is not None:
        limits.setdefault("body_bytes", float(str(largest)))
    if not config.allow_client_shm:
        limits["regions"] = 0
    return {**usual, **limits}


def _restricted(config: DaemonConfig) -> dict[str, list[Any]]:
    if not config.restricted_endpoints or config.access_token is None:
        return {}
    one = [list(config.restricted_endpoints), ACCESS_HEADER, config.access_token]
    return {"http": [one], "grpc": [one]}


def _files(certificate: Any, key: Any, root: Any, *, mutual: bool) -> Tls:
    return {"certificate": certificate, "key": key, "root": root, "mutual": mutual}
