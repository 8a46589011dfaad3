"""Settings: tritonserver, the model repositories, and access to tritonserver's administrative endpoints."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.frontend_settings import FrontendSettings
from pytriton._host.settings.option import SECONDS, Option
from pytriton._host.settings.parsing import Kind
from pytriton._host.settings.triton_options import Options, read_options

#: Endpoints that Triton can restrict with a token; the first five change the server or reveal data about its users.
_ENDPOINTS = ("model-repository", "shared-memory", "trace", "logging", "statistics")
_ALL_ENDPOINTS = (*_ENDPOINTS, "health", "metadata", "inference", "model-config")
_OPTIONS = Kind("options of tritonserver", read_options)


class ServerSettings(FrontendSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of `DaemonConfig` about tritonserver."""

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────
    tritonserver: Annotated[
        Optional[str],
        Option(
            "tritonserver binary or installation directory. Default: /opt/tritonserver, the one on PATH, or the one "
            "in the cache, which is downloaded if missing.",
            values.optional(values.path()),
        ),
    ] = None
    proxy_python: Annotated[
        Optional[str],
        Option(
            "Python 3.9 to 3.12 with a shared libpython, for the `python` proxy and for models of Triton's own "
            "python backend. Default: searched for when needed.",
            values.optional(values.path()),
        ),
    ] = None
    proxy: Annotated[
        str,
        Option(
            "Program that connects tritonserver to the workers. `native` is faster; a checkout needs a C compiler "
            "once. `python` needs none. `auto` uses native if available.",
            values.choice("auto", "native", "python"),
        ),
    ] = "auto"
    cache_dir: Annotated[
        Optional[str],
        Option(
            "Directory of the downloaded tritonserver and the environments of its proxies. Default: "
            "pytriton-daemon in $XDG_CACHE_HOME or ~/.cache.",
            values.optional(values.path()),
        ),
    ] = None
    response_cache_size: Annotated[
        int,
        Option(
            "Size of the response cache, in bytes. 0 disables it. Used by models whose configuration enables "
            "response_cache. Needs the native frontend.",
            values.size(),
        ),
    ] = 0
    tritonserver_options: Annotated[
        Options,
        Option(
            "Any other tritonserver option, by its name without dashes. As a flag: --triton-option NAME=VALUE.",
            _OPTIONS,
        ),
    ] = msgspec.field(default_factory=dict)

    # ── model repositories ───────────────────────────────────────────────────────────────────────
    model_repository: Annotated[
        tuple[str, ...],
        Option(
            "Directory of models in Triton's layout, or a URL with s3://, gs:// or as://. May be repeated.",
            values.several(values.path()),
        ),
    ] = ()
    model_control_mode: Annotated[
        str,
        Option(
            "Which models of model_repository to load. `none`: all, at startup. `explicit`: those of load_model. "
            "`poll`: all, and reload a model when its files change.",
            values.choice("none", "explicit", "poll"),
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a model to load at startup with model_control_mode explicit. May be repeated. `*` loads all.",
            values.several(values.text()),
        ),
    ] = ()
    repository_poll_s: Annotated[
        float,
        Option(
            "Interval between checks for changed files with model_control_mode poll, in seconds.",
            SECONDS,
        ),
    ] = 15.0
    model_python: Annotated[
        Optional[str],
        Option(
            "Interpreter for workers that serve models of model_repository, with the frameworks of those models. "
            "Default: the daemon's interpreter.",
            values.optional(values.path()),
        ),
    ] = None

    model_env: Annotated[
        tuple[str, ...],
        Option(
            "Environment variable for workers that serve models of model_repository. NAME copies one of the "
            "daemon's variables, NAME=VALUE sets one, `*` copies all. May be repeated. Variables that are neither "
            "secrets nor part of a login session are always copied.",
            values.several(values.variable()),
        ),
    ] = ()
    python_backend_model: Annotated[
        tuple[str, ...],
        Option(
            "Python model in model_repository to serve with tritonserver's own python backend instead of workers. "
            "May be repeated. `*` is all.",
            values.several(values.text()),
        ),
    ] = ()
    install_packages: Annotated[
        bool,
        Option(
            "Create environments for models of model_repository, with the packages that their format needs and "
            "those of their requirements.txt. Environments are reused.",
            values.boolean(),
        ),
    ] = False

    # ── access ───────────────────────────────────────────────────────────────────────────────────
    restricted_endpoints: Annotated[
        tuple[str, ...],
        Option(
            "Triton endpoints that require the access token, over HTTP and gRPC.",
            values.names(*_ALL_ENDPOINTS),
        ),
    ] = _ENDPOINTS
    access_token: Annotated[
        Optional[str],
        Option(
            "Token for the restricted endpoints. Default: a random token per start, shown by `pytriton-daemon "
            "token`. Do not pass it as a flag: other users can see flags.",
            values.optional(values.secret()),
        ),
    ] = None

    grpc_client_cert: Annotated[
        Optional[str],
        Option(
            "Client certificate (PEM) of the daemon for its own tritonserver. Only needed with grpc-use-ssl-mutual "
            "and without allow_http.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_client_key: Annotated[
        Optional[str],
        Option("Private key (PEM) of grpc_client_cert.", values.optional(values.path())),
    ] = None
