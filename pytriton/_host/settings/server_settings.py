"""Settings: tritonserver, the model repositories, and who may use tritonserver's administrative endpoints."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.front_settings import FrontSettings
from pytriton._host.settings.option import SECONDS, Option
from pytriton._host.settings.parsing import Kind
from pytriton._host.settings.triton_options import Options, read_options

#: What Triton can ask a token for; the first five change the server or tell about its users.
_ENDPOINTS = ("model-repository", "shared-memory", "trace", "logging", "statistics")
_ALL_ENDPOINTS = (*_ENDPOINTS, "health", "metadata", "inference", "model-config")
_OPTIONS = Kind("options of tritonserver", read_options)


class ServerSettings(FrontSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The third part of `DaemonConfig`."""

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────
    tritonserver: Annotated[
        Optional[str],
        Option(
            "A tritonserver binary, or the folder of an installation. Default: /opt/tritonserver, "
            "the one on PATH, or the one that is fetched into the cache.",
            values.optional(values.path()),
        ),
    ] = None
    proxy_python: Annotated[
        Optional[str],
        Option(
            "Python 3.9 to 3.12 with a shared libpython, for what runs inside tritonserver in Python: the `python` "
            "proxy, and models of its own python backend. Default: one that is found when it is needed.",
            values.optional(values.path()),
        ),
    ] = None
    proxy: Annotated[
        str,
        Option(
            "The program that stands for models inside of tritonserver: `native` is compiled once with a C compiler "
            "and faster, `python` needs none; `auto` is the first where it can be had.",
            values.choice("auto", "native", "python"),
        ),
    ] = "auto"
    cache_dir: Annotated[
        Optional[str],
        Option(
            "Folder where the fetched tritonserver and what its proxies need are kept. Default: "
            "pytriton-daemon in $XDG_CACHE_HOME or ~/.cache.",
            values.optional(values.path()),
        ),
    ] = None
    response_cache_size: Annotated[
        int,
        Option(
            "Size of the response cache in bytes. 0 disables it. Models use it if their "
            "configuration has response_cache enabled. It takes the native frontend.",
            values.size(),
        ),
    ] = 0
    tritonserver_options: Annotated[
        Options,
        Option(
            "Any other option of tritonserver by its name without dashes; flag: --triton-option "
            "NAME=VALUE.",
            _OPTIONS,
        ),
    ] = msgspec.field(default_factory=dict)

    # ── model repositories ───────────────────────────────────────────────────────────────────────
    model_repository: Annotated[
        tuple[str, ...],
        Option(
            "A folder of models in Triton's layout, or s3://, gs:// or as://; may be given several times.",
            values.several(values.path()),
        ),
    ] = ()
    model_control_mode: Annotated[
        str,
        Option(
            "The models of model_repository that are loaded, and when: `none` loads all at the start, `explicit` "
            "those that load_model names, `poll` all, and again whenever their files change.",
            values.choice("none", "explicit", "poll"),
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a model to load at the start, with model_control_mode explicit; may be given "
            "several times. `*` is all.",
            values.several(values.text()),
        ),
    ] = ()
    repository_poll_s: Annotated[
        float,
        Option("Seconds between two looks at the files, with model_control_mode poll.", SECONDS),
    ] = 15.0
    model_python: Annotated[
        Optional[str],
        Option(
            "Interpreter of the workers that serve models of model_repository, with the frameworks "
            "that these need. Default: the daemon's own.",
            values.optional(values.path()),
        ),
    ] = None

    model_env: Annotated[
        tuple[str, ...],
        Option(
            "Environment variables for the workers that serve models of model_repository, beside those of the daemon's "
            "that neither look like secrets nor belong to a session: NAME copies one of the daemon's, NAME=VALUE sets "
            "one, `*` copies all; may be given several times.",
            values.several(values.variable()),
        ),
    ] = ()
    python_backend_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a Python model in model_repository that tritonserver's own python backend serves "
            "instead of workers; may be given several times. `*` is all.",
            values.several(values.text()),
            formerly="native_model",
        ),
    ] = ()
    install_packages: Annotated[
        bool,
        Option(
            "Make environments for models of model_repository: with the packages of their format that "
            "model_python lacks, and those that a requirements.txt in their folder lists. They are kept.",
            values.boolean(),
        ),
    ] = False

    # ── access ───────────────────────────────────────────────────────────────────────────────────
    restricted_endpoints: Annotated[
        tuple[str, ...],
        Option(
            "Endpoints of Triton that ask for the access token, over HTTP and gRPC.",
            values.names(*_ALL_ENDPOINTS),
        ),
    ] = _ENDPOINTS
    access_token: Annotated[
        Optional[str],
        Option(
            "The token that the restricted endpoints ask for. Default: a random one for each start; "
            "`pytriton-daemon token` and `DaemonClient.access_token` tell it. Better set by "
            "variable or file than by flag: other users can see a command line.",
            values.optional(values.secret()),
        ),
    ] = None

    grpc_client_cert: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM) that the daemon shows to its own tritonserver. Needed only when "
            "grpc-use-ssl-mutual is on and allow_http is off.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_client_key: Annotated[
        Optional[str],
        Option("The key (PEM) of grpc_client_cert.", values.optional(values.path())),
    ] = None
