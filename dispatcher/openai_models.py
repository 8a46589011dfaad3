"""The state that the daemon sends to the OpenAI frontend: tritonserver's address, and the models to serve through the
API.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.limits import openai_limits
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.openai.state import ApiModel, ApiSettings, ApiState, Upstream
from pytriton.dispatcher.server.frontend import Frontend

#: Idle time after which a stream sends a comment, so that no proxy closes it.
_KEEPALIVE_S = 15.0

__all__ = ["api_state", "check_aliases", "upstream"]


def api_state(
    config: DaemonConfig, frontend: Frontend, served: ServedModels, restoring: Iterable[Entry]
) -> ApiState:
    """Return the current settings, server address and models for the OpenAI frontend.

    A model that is being restored is included: like other requests, those for it wait in the frontend, or get 503 instead
    of 404.
    """
    limits = openai_limits(config.openai_limit)
    models = [_api_model(one.spec, one.registered_at) for one in served]
    models += [
        _api_model(one.spec, one.registered_at, ready=False)
        for one in restoring
        if one.spec.name not in served
    ]
    return ApiState(
        ApiSettings(
            keys_file=config.openai_keys_file,
            cors_origins=config.cors_origins,
            remote_urls=config.openai_remote_urls,
            max_body_size=int(limits["body_bytes"]),
            max_requests=int(limits["requests"]),
            keepalive_s=_KEEPALIVE_S,
            timeout_s=limits["response_s"],
        ),
        upstream(config, frontend),
        [one for one in models if one is not None],
    )


def check_aliases(spec: messages.ModelSpec, registry: Registry) -> None:
    """Refuse a model if another one, served or being restored, already uses one of its ids in the OpenAI API.

    Raises:
        RemoteFailure: another model has one of the ids.
    """
    if spec.openai is None:
        return
    ids = {spec.name, *spec.openai.aliases}
    for other in [*(one.spec for one in registry.served), *registry.restoring.specs()]:
        others = [] if other.openai is None else [other.name, *other.openai.aliases]
        taken = ids.intersection(others)
        if taken and other.name != spec.name:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {spec.name}: in the OpenAI API, the model {other.name} already has the id {min(taken)!r}; "
                "choose other aliases",
            )


def upstream(config: DaemonConfig, frontend: Frontend) -> Upstream:
    """Return the address of tritonserver for the OpenAI frontend: a unix socket if there is one, otherwise loopback.

    The native frontend always has a private unix socket, even if clients get no HTTP, or only TLS. Connections to it do
    not count towards the limits per address.
    """
    socket = frontend.http_socket or config.http_unix_socket
    if socket is not None:
        return Upstream("http://tritonserver", str(socket), config.access_token)
    return Upstream(frontend.endpoints.urls()["http_url"], None, config.access_token)


def _api_model(
    spec: messages.ModelSpec, registered_at: float, *, ready: bool = True
) -> ApiModel | None:
    if spec.openai is None:
        return None
    return ApiModel(
        spec.name,
        spec.openai,
        created=int(registered_at),
        ready=ready,
        most_texts=max(1, int(spec.config.get("max_batch_size", 1))),
    )
