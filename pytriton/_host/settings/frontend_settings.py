"""Settings of the frontend: the program around Triton's core that serves clients."""

from __future__ import annotations

from typing import Annotated, Optional

from pytriton._host.settings import parsing as values
from pytriton._host.settings.frontend_limits import LIMITS, limits
from pytriton._host.settings.openai_settings import OpenAISettings
from pytriton._host.settings.option import Option

_LIMITS = ", ".join(f"{name} ({one.usual:.15g})" for name, one in LIMITS.items())


class FrontendSettings(OpenAISettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The frontend's part of `DaemonConfig`."""

    # ── the frontend ────────────────────────────────────────────────────────────────────────────────
    frontend: Annotated[
        str,
        Option(
            "Server around Triton's core. `native` is pytriton-daemon's own; a checkout needs a C compiler once. "
            "`triton` is NVIDIA's tritonserver. `auto` uses the native one, or NVIDIA's if the native one is "
            "unavailable (see the log) or does not support one of tritonserver_options.",
            values.choice("auto", "native", "triton"),
        ),
    ] = "auto"
    frontend_threads: Annotated[
        Optional[int],
        Option(
            "Number of native frontend threads that read requests. Default: 1, or 2 with four or more processors.",
            values.optional(values.integer(1, 64)),
        ),
    ] = None
    frontend_limit: Annotated[
        tuple[str, ...],
        Option(
            "Limit of the native frontend, as NAME=VALUE. May be repeated. Defaults: "
            f"`{_LIMITS}`. `_s`: seconds. `total_*` default to a quarter of the memory of the machine or of the daemon's "
            "control group, if more.",
            limits(),
        ),
    ] = ()
    http_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the native frontend also serves HTTP, for the daemon's user only.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the native frontend also serves gRPC, for the daemon's user only.",
            values.optional(values.path()),
        ),
    ] = None
    http_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate chain (PEM) for HTTPS instead of HTTP, with the native frontend. For gRPC, "
            "use grpc-use-ssl of tritonserver_options.",
            values.optional(values.path()),
        ),
    ] = None
    http_key: Annotated[
        Optional[str],
        Option("Private key (PEM) of http_certificate.", values.optional(values.path())),
    ] = None
    http_client_authorities: Annotated[
        Optional[str],
        Option(
            "CA certificates (PEM) of HTTPS clients. Default: no client certificate is required.",
            values.optional(values.path()),
        ),
    ] = None
