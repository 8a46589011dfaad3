"""Settings: the daemon's folders, what it serves where, and who may control it."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.option import PORT, Option
from pytriton._protocol.files.rundir import default_runtime_dir


class PlaceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first part of `DaemonConfig`."""

    runtime_dir: Annotated[
        str,
        Option(
            "Folder of the daemon's sockets, logs and pid. Default: pytriton-daemon in "
            "$XDG_RUNTIME_DIR, /run/pytriton-daemon for root, or pytriton-daemon-UID in the folder "
            "for temporary files.",
            values.path(),
        ),
    ] = msgspec.field(default_factory=lambda: str(default_runtime_dir()))

    state_dir: Annotated[
        Optional[str],
        Option(
            "Folder where registrations are kept for the next start. Default: /var/lib/pytriton-daemon "
            "for root, else pytriton-daemon in $XDG_STATE_HOME or ~/.local/state; `state` in the "
            "runtime directory when that is not the default one.",
            values.optional(values.path()),
        ),
    ] = None
    ephemeral: Annotated[
        bool,
        Option("Keep no registrations, and restore none at the start.", values.boolean()),
    ] = False

    # ── endpoints ────────────────────────────────────────────────────────────────────────────────
    allow_http: Annotated[bool, Option("Serve HTTP.", values.boolean())] = True
    http_address: Annotated[
        str, Option("Address that HTTP is served on; 0.0.0.0 is every interface.", values.text())
    ] = "127.0.0.1"
    http_port: Annotated[int, Option("Port of HTTP; 0 takes a free one.", PORT)] = 8000
    allow_grpc: Annotated[bool, Option("Serve gRPC.", values.boolean())] = True
    grpc_address: Annotated[
        str, Option("Address that gRPC is served on; 0.0.0.0 is every interface.", values.text())
    ] = "127.0.0.1"
    grpc_port: Annotated[int, Option("Port of gRPC; 0 takes a free one.", PORT)] = 8001
    allow_metrics: Annotated[bool, Option("Serve metrics for Prometheus.", values.boolean())] = True
    allow_client_shm: Annotated[
        bool,
        Option(
            "Let clients register shared memory for tensors; by default that takes the access token.",
            values.boolean(),
        ),
    ] = True
    metrics_address: Annotated[
        str,
        Option("Address that metrics are served on; 0.0.0.0 is every interface.", values.text()),
    ] = "127.0.0.1"
    metrics_port: Annotated[int, Option("Port of metrics; 0 takes a free one.", PORT)] = 8002

    # ── operations ───────────────────────────────────────────────────────────────────────────────
    operations: Annotated[
        Optional[str],
        Option(
            "Address and port on which the daemon itself serves /metrics: its own and, behind them, tritonserver's; "
            "port 0 takes a free one, which `status` tells. Default: none.",
            values.optional(values.address()),
        ),
    ] = None
    operations_unix: Annotated[
        Optional[str],
        Option(
            "Path of a unix socket on which it serves the same, for this user alone. Default: none.",
            values.optional(values.path()),
        ),
    ] = None
    operations_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM) that `operations` is served with: from then on it is HTTPS.",
            values.optional(values.path()),
        ),
    ] = None
    operations_key: Annotated[
        Optional[str],
        Option("The key (PEM) of operations_certificate.", values.optional(values.path())),
    ] = None
    operations_token: Annotated[
        bool,
        Option(
            "Ask for the access token there, as `Authorization: Bearer TOKEN`.", values.boolean()
        ),
    ] = False

    # ── control ──────────────────────────────────────────────────────────────────────────────────
    control_group: Annotated[
        Optional[str],
        Option(
            "Name of a group whose members may control the daemon, too: whoever may register a "
            "callable can do all that the daemon's user can. Default: only that user and root.",
            values.optional(values.text()),
        ),
    ] = None
    control_tcp: Annotated[
        Optional[str],
        Option(
            "Address and port on which clients with a key may control the daemon, too; port 0 "
            "takes a free one. It needs `pytriton-daemon keys init`. Default: none.",
            values.optional(values.address()),
        ),
    ] = None
    keys_dir: Annotated[
        Optional[str],
        Option(
            "Folder of the keys for control_tcp. Default: /etc/pytriton-daemon/keys for root, else "
            "pytriton-daemon/keys in $XDG_CONFIG_HOME or ~/.config.",
            values.optional(values.path()),
        ),
    ] = None
    max_payload_size: Annotated[
        int,
        Option(
            "The most bytes of one pickled callable; a larger one is refused.",
            values.size(),
        ),
    ] = 4 << 30
