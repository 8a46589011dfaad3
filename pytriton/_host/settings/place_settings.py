"""Settings: the daemon's directories, its endpoints, and who may control it."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.option import PORT, Option
from pytriton._protocol.files.rundir import default_runtime_dir


class PlaceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of `DaemonConfig` about directories, endpoints and control."""

    runtime_dir: Annotated[
        str,
        Option(
            "Directory of sockets, logs and PID file. Default: $XDG_RUNTIME_DIR/pytriton-daemon, else "
            "/run/pytriton-daemon for root, else pytriton-daemon-UID in the temporary directory.",
            values.path(),
        ),
    ] = msgspec.field(default_factory=lambda: str(default_runtime_dir()))

    state_dir: Annotated[
        Optional[str],
        Option(
            "Directory in which registrations are persisted for the next start. Default: /var/lib/pytriton-daemon "
            "for root, else pytriton-daemon in $XDG_STATE_HOME or ~/.local/state; `state` in the "
            "runtime directory if that is not the default one.",
            values.optional(values.path()),
        ),
    ] = None
    ephemeral: Annotated[
        bool,
        Option("Do not persist registrations, and restore none at startup.", values.boolean()),
    ] = False

    # ── endpoints ────────────────────────────────────────────────────────────────────────────────
    allow_http: Annotated[bool, Option("Serve HTTP.", values.boolean())] = True
    http_address: Annotated[
        str, Option("Address to serve HTTP on. 0.0.0.0 listens on every interface.", values.text())
    ] = "127.0.0.1"
    http_port: Annotated[int, Option("HTTP port. 0 picks a free port.", PORT)] = 8000
    allow_grpc: Annotated[bool, Option("Serve gRPC.", values.boolean())] = True
    grpc_address: Annotated[
        str, Option("Address to serve gRPC on. 0.0.0.0 listens on every interface.", values.text())
    ] = "127.0.0.1"
    grpc_port: Annotated[int, Option("gRPC port. 0 picks a free port.", PORT)] = 8001
    allow_metrics: Annotated[bool, Option("Serve Prometheus metrics.", values.boolean())] = True
    allow_client_shm: Annotated[
        bool,
        Option(
            "Let clients register shared memory for tensors. Registering needs the access token by default.",
            values.boolean(),
        ),
    ] = True
    metrics_address: Annotated[
        str,
        Option("Address to serve metrics on. 0.0.0.0 listens on every interface.", values.text()),
    ] = "127.0.0.1"
    metrics_port: Annotated[int, Option("Metrics port. 0 picks a free port.", PORT)] = 8002

    # ── management ───────────────────────────────────────────────────────────────────────────────
    management_address: Annotated[
        Optional[str],
        Option(
            "Address and port of /metrics and the dashboard. Port 0 picks a free port, shown by `status`.",
            values.optional(values.address()),
        ),
    ] = None
    management_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the daemon also serves `management_address`, for its own user only.",
            values.optional(values.path()),
        ),
    ] = None
    management_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM) for `management_address` over HTTPS instead of HTTP.",
            values.optional(values.path()),
        ),
    ] = None
    management_key: Annotated[
        Optional[str],
        Option("Private key (PEM) of management_certificate.", values.optional(values.path())),
    ] = None
    management_require_token: Annotated[
        bool,
        Option(
            "Require the access token on `management_address`, as `Authorization: Bearer TOKEN`.",
            values.boolean(),
        ),
    ] = False

    # ── control ──────────────────────────────────────────────────────────────────────────────────
    control_group: Annotated[
        Optional[str],
        Option(
            "Group whose members may also control the daemon, and so run code as its user. Default: only that user "
            "and root.",
            values.optional(values.text()),
        ),
    ] = None
    control_tcp: Annotated[
        Optional[str],
        Option(
            "Address and port on which clients with a key may control the daemon. Port 0 picks a free port. Needs "
            "`pytriton-daemon keys init`.",
            values.optional(values.address()),
        ),
    ] = None
    keys_dir: Annotated[
        Optional[str],
        Option(
            "Directory of the keys for control_tcp. Default: /etc/pytriton-daemon/keys for root, else "
            "pytriton-daemon/keys in $XDG_CONFIG_HOME or ~/.config.",
            values.optional(values.path()),
        ),
    ] = None
    max_payload_size: Annotated[
        int,
        Option(
            "Maximum size of a pickled callable, in bytes.",
            values.size(),
        ),
    ] = 4 << 30
