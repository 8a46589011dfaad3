"""Lets models load, unload and query other models, as in Triton's python backend.

A model may load models of the daemon's repositories, and models whose files it sends. A registered model belongs to its
registrant: other models may query whether it is ready, but neither reload nor unload it.
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

#: "No particular version", as written by `InferenceRequest`.
_ANY_VERSIONS = ("", "-1")


class ModelControl:
    """Carries out models' requests about other models."""

    def __init__(self, registry: Registry, repository: RepositoryModels) -> None:
        self._registry = registry
        self._repository = repository
        self._unloading: set[asyncio.Task[None]] = set()

    async def load(self, message: messages.LoadOther, payloads: Sequence[bytes]) -> None:
        """Load a model; return when it is served. A registered model that is ready needs no loading.

        Raises:
            RemoteFailure: the model does not exist, is a registered one that must not change, or cannot be served.
        """
        asker = self._registry.worker(message.worker)[0].spec.name
        config = _config_of(message)
        files = _files_of(message, payloads)
        registered = self._registered(message.name)
        if registered is not None:
            self._refuse_changes(registered, changes=config is not None or bool(files))
            return
        _log.info("model requests loading another model", asker=asker, model=message.name)
        await self._repository.load(message.name, config, files)

    async def unload(self, message: messages.UnloadOther) -> None:
        """Start to unload a model. Does nothing if it is not loaded, as in tritonserver.

        Does not wait for the end: the caller may be what the model's last batch waits for.

        Raises:
            RemoteFailure: it is a registered model.
        """
        asker = self._registry.worker(message.worker)[0].spec.name
        if self._registered(message.name) is not None:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {message.name!r} is registered, so other models cannot unload it: "
                f"use `pytriton-daemon unregister {message.name}`, or unregister() of a client",
            )
        names = [message.name]
        if message.dependents:
            names += self._repository.known.parts(message.name)
        for name in names:
            if self._repository.known.serves(name):
                _log.info("model requests unloading another model", asker=asker, model=name)
                task = asyncio.get_running_loop().create_task(self._unload(name))
                self._unloading.add(task)
                task.add_done_callback(self._unloading.discard)
        await asyncio.sleep(0)  # let the tasks start, so that the models are no longer ready

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready, in the given version or in any.

        Raises:
            RemoteFailure: the version is not a number.
        """
        if version not in _ANY_VERSIONS and not version.isdecimal():
            raise RemoteFailure(
                ErrorKind.INVALID, f"{version!r} is not a valid model version: it must be a number"
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
        """Return the registration of this name, unless it is a model of a repository."""
        if self._repository.known.serves(name):
            return None
        return next((one for one in self._registry if one.spec.name == name), None)

    def _refuse_changes(self, registered: Registration, *, changes: bool) -> None:
        name = registered.spec.name
        if changes:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is registered, so no other model can give it a configuration or files: "
                "unregister it first, or register it again with replace=True",
            )
        if registered.state not in messages.SERVED_STATES:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"model {name!r} is registered and not ready ({registered.state}): `pytriton-daemon status` and "
                f"`pytriton-daemon logs {name}` show details",
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
            ErrorKind.INVALID, f"the configuration for model {message.name!r} is not JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"the configuration for model {message.name!r} is a JSON {type(config).__name__}, not an object",
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
            f"load_model({message.name!r}): files= requires config=, a model's whole configuration as JSON",
        )
    return dict(zip(message.files, payloads)) or None
