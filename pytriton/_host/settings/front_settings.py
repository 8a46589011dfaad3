"""Settings: the program around Triton's core that clients talk to, and what only the native one has."""

from __future__ import annotations

from typing import Annotated, Optional

from pytriton._host.settings import parsing as values
from pytriton._host.settings.front_limits import LIMITS, limits
from pytriton._host.settings.openai_settings import OpenAISettings
from pytriton._host.settings.option import Option

_LIMITS = ", ".join(f"{name} ({one.usual:.15g})" for name, one in LIMITS.items())


class FrontSettings(OpenAISettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second part of `DaemonConfig`."""

    # ── the front ────────────────────────────────────────────────────────────────────────────────
    front: Annotated[
        str,
        Option(
            "The program around Triton's core that answers clients: `native` is pytriton-daemon's own, which a wheel "
            "brings along and a C compiler makes once from a checkout. `triton` is NVIDIA's executable. `auto` is the "
            "native one. It is NVIDIA's where that cannot be had (the log says why) or where tritonserver_options has "
            "options that only NVIDIA's frontends know.",
            values.choice("auto", "native", "triton"),
        ),
    ] = "auto"
    front_loops: Annotated[
        Optional[int],
        Option(
            "Threads of the native front that read requests. Default: one, and two from four processors on.",
            values.optional(values.integer(1, 64)),
        ),
    ] = None
    front_limit: Annotated[
        tuple[str, ...],
        Option(
            "A limit of the native front, NAME=VALUE; may be given several times. There are, with their defaults: "
            f"`{_LIMITS}`. `_s`: seconds. `total_*`: a quarter of the memory of the machine, or of the daemon's "
            "control group, if that is more.",
            limits(),
        ),
    ] = ()
    http_unix: Annotated[
        Optional[str],
        Option(
            "Path of a unix socket that the native front serves HTTP on as well, for this user alone. Default: none.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_unix: Annotated[
        Optional[str],
        Option(
            "Path of a unix socket that the native front serves gRPC on as well, for this user alone. Default: none.",
            values.optional(values.path()),
        ),
    ] = None
    http_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM, with those that lead to an authority's) that the native front serves HTTP with: from "
            "then on it is HTTPS. Default: none. For gRPC, see grpc-use-ssl in tritonserver_options.",
            values.optional(values.path()),
        ),
    ] = None
    http_key: Annotated[
        Optional[str],
        Option("The key (PEM) of http_certificate.", values.optional(values.path())),
    ] = None
    http_client_authorities: Annotated[
        Optional[str],
        Option(
            "Certificates (PEM) of authorities: clients of HTTPS have to show a certificate of theirs. Default: "
            "they need none.",
            values.optional(values.path()),
        ),
    ] = None
