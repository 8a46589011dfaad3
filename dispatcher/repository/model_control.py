"""Models that load, unload and query other models, as Triton's python backend lets them.

A model may load the models of the daemon's repositories, and models whose files it sends along. A registered model
belongs to its registrant: other models may ask whether it is ready, but neither load it anew nor unload it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.repository_models import RepositoryModels

_log = structlog.get_logger(__name__)

#: "no particular version", as `InferenceRequest` writes it.
_ANY_VERSIONS = ("", "-1")


class ModelControl:
    """Carries out the requests of models about other models."""

    def __init__(self, registry: Registry, repository: RepositoryModels) -> None:
        self._registry = registry
        self._repository = repository
        self._unloading: set[asyncio.Task[None]] = set()

    async def load(self, message: messages.LoadOther, payloads: Sequence[bytes]) -> None:
        """Load a model; returns when it is served. One that is registered and ready needs no loading.

        Raises:
            RemoteFailure: there is no such model, it is somebody's registration, or it cannot be served.
        """
        asker = self._registry.worker(message.worker)[0].spec.name
        config = _config_of(message)
        files = _files_of(message, payloads)
        registered = self._registered(message.name)
        if registered is not None:
            self._refuse_changes(registered, changes=config is not None or bool(files))
            return
        _log.info("a model asks for another one to be loaded", asker=asker, model=message.name)
        await self._repository.load(message.name, config, files)

    async def unload(self, message: messages.UnloadOther) -> None:
        """Begin to unload a model; of one that is not loaded, nothing happens, as in tritonserver.

        It is not waited for: the asker may be what the model's last batch waits for.

        Raises:
            RemoteFailure: it is somebody's registration.
        """
        asker = self._registry.worker(message.worker)[0].spec.name
        if self._registered(message.name) is not None:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {message.name!r} is registered, so it is not for other models to unload: "
                f"`pytriton-daemon unregister {message.name}` does, or unregister() of a client",
            )
        names = [message.name]
        if message.dependents:
            names += self._repository.known.parts(message.name)
        for name in names:
            if self._repository.known.serves(name):
                _log.info("a model asks for another one to be unloaded", asker=asker, model=name)
                task = asyncio.get_running_loop().create_task(self._unload(name))
                self._unloading.add(task)
                task.add_done_callback(self._unloading.discard)
        await asyncio.sleep(0)  # the tasks have begun: the models are not ready any more

    def is_ready(self, name: str, version: str) -> bool:
        """Tell whether a model is ready; without a version, any of it.

        Raises:
            RemoteFailure: that is no version.
        """
        if version not in _ANY_VERSIONS and not version.isdecimal():
            raise RemoteFailure(
                ErrorKind.INVALID, f"{version!r} is no version of a model: it has to be a number"
            )
        wanted = None if version in _ANY_VERSIONS else int(version)
        versions = self._repository.known.tritonservers_versions(name)
        if versions is not None:
            return wanted is None or not versions or wanted in versions
        for registration in self._registry:
            spec = registration.spec
            if spec.name == name:
                versions = spec.versions or [spec.version]
                return registration.state in messages.SERVED_STATES and (
                    wanted is None or wanted in versions
                )
        return False

    def _registered(self, name: str) -> Registration | None:
        """Return the registration that a name belongs to, unless it is a model of a repository."""
        if self._repository.known.serves(name):
            return None
        return next((one for one in self._registry if one.spec.name == name), None)

    def _refuse_changes(self, registered: Registration, *, changes: bool) -> None:
        name = registered.spec.name
        if changes:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is registered, so no other model can give it a configuration or files: "
                "unregister it first, or register it anew with replace=True",
            )
        if registered.state not in messages.SERVED_STATES:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"model {name!r} is registered and not ready ({registered.state}): `pytriton-daemon status` and "
                f"`pytriton-daemon logs {name}` say more",
            )

    async def _unload(self, name: str) -> None:
        try:
            await self._repository.unload(name)
        except RemoteFailure as failure:
            _log.error("a model was not unloaded", model=name, reason=failure.text)


def _config_of(message: messages.LoadOther) -> Mapping[str, Any] | None:
    if not message.config:
        return None
    try:
        config = json.loads(message.config)
    except ValueError as error:
        raise RemoteFailure(
            ErrorKind.INVALID, f"the configuration for model {message.name!r} is no JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"the configuration for model {message.name!r} is a JSON {type(config).__name__}, no object",
        )
    return config


def _files_of(message: messages.LoadOther, payloads: Sequence[bytes]) -> dict[str, bytes] | None:
    if len(payloads) != len(message.files):
        raise RemoteFailure(
            ErrorKind.INVALID, f"{len(message.files)} files and {len(payloads)} contents"
        )
    if message.files and not message.config:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"load_model({message.name!r}): files= come with config=, a model's whole configuration as JSON",
        )
    return dict(zip(message.files, payloads)) or None
