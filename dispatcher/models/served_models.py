"""The table of registrations. Lookups by name find only registrations that are serving; lookups by key find all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.declaration import CurrentDeclaration
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.model_counters import CounterRegistry
from pytriton.dispatcher.workers.worker import Worker


class ServedModels:
    """The table of registrations, with lookups. Only deployer.py changes the table.

    Args:
        models: tritonserver's repository
        restoring: the persisted models that are not served

    Attributes:
        names: the serving registrations, in the order of registration.
        keys: all registrations: serving, starting and stopping.
        counter_registry: the counters of each model, by name.
    """

    def __init__(self, models: Path, restoring: Restorer) -> None:
        self.names: dict[str, Registration] = {}
        self.keys: dict[str, Registration] = {}
        self.counter_registry = CounterRegistry()
        self._models = models
        self._restoring = restoring

    def __iter__(self) -> Iterator[Registration]:
        return iter(self.names.values())

    def __contains__(self, name: str) -> bool:
        """Return whether a registration serves this name."""
        return name in self.names

    def get(self, name: str) -> Registration | None:
        """Return the registration that serves this name, or None."""
        return self.names.get(name)

    def add(self, registration: Registration) -> None:
        """Add a serving registration. Keep the order of registration even if restores finish in a different order."""
        self.names[registration.spec.name] = registration
        if registration.serial:
            later = [name for name, one in self.names.items() if one.serial > registration.serial]
            for name in later:
                self.names[name] = self.names.pop(name)

    def find_starting(self, name: str) -> Registration | None:
        """Return the first registration of this name that is starting, or None."""
        if name in self.names:
            return None
        return next((one for one in self.keys.values() if one.spec.name == name), None)

    def declared(self, names: Sequence[str]) -> list[Registration | CurrentDeclaration]:
        """Return the declarations of these models; without names, of all models that are served or loaded on demand.

        Raises:
            RemoteFailure: a name is unknown.
        """
        deferred = self._restoring.declared()
        if not names:
            return [*(one for one in self if one.kept), *deferred.values()]
        found = [deferred.get(name) or self.by_name(name) for name in names]
        return [one for one in found if isinstance(one, CurrentDeclaration) or one.kept]

    def by_key(self, key: str) -> Registration:
        """Return the registration that a proxy belongs to.

        Raises:
            RemoteFailure: there is no such registration.
        """
        try:
            return self.keys[key]
        except KeyError:
            raise RemoteFailure(ErrorKind.NOT_FOUND, f"registration {key} is gone") from None

    def by_name(self, name: str) -> Registration:
        """Return the registration that serves this name.

        Raises:
            RemoteFailure: there is none; the text lists the known names.
        """
        try:
            return self.names[name]
        except KeyError:
            known = ", ".join(sorted(self.names)) or "none"
            text = f"no model {name!r} is registered; registered models: {known}"
            why = self._restoring.error(name)
            if why is not None:
                text = (
                    f"model {name!r} is not served: it could not be restored ({why}). The next start "
                    "retries it. Register it again, roll it back, or unregister it."
                )
            elif self._restoring.is_restoring(name):
                text = f"model {name!r} is not served yet: it is being restored"
            elif own_repository.is_linked(self._models, name):
                text = (
                    f"model {name!r} has no workers: it is a repository model, and tritonserver itself serves "
                    f"it (pytriton-daemon repository unload {name})"
                )
            raise RemoteFailure(ErrorKind.NOT_FOUND, text) from None

    def hosts(self, registrant: Registrant) -> bool:
        """Return whether a served model runs in threads of this registrant."""
        return any(one.registrant is registrant for one in self)

    def workers_of(self, model: str) -> list[str]:
        """Return the names of a model's ready workers; empty if the model is unknown."""
        found = (registration for registration in self if registration.spec.name == model)
        return [name for registration in found for name in registration.pool.ready_workers()]

    def worker(self, name: str) -> tuple[Registration, Worker]:
        """Return a worker and its registration.

        Raises:
            RemoteFailure: no worker has this name.
        """
        for registration in self.keys.values():
            worker = registration.pool.worker(name)
            if worker is not None:
                return registration, worker
        raise RemoteFailure(ErrorKind.NOT_FOUND, f"this daemon has no worker {name}")


def describe_registrations(
    registrations: Sequence[Registration | CurrentDeclaration],
    *,
    with_payloads: bool,
    known: str = "",
) -> messages.Registrations:
    """Describe registrations for a client; return an empty message if the client already has them. Thread-safe.

    Args:
        registrations: the requested registrations
        with_payloads: include everything that another daemon needs to serve them
        known: the `state` of the client's last answer
    """
    found = [(one.spec, one.digest(), one) for one in registrations]
    state = hashlib.sha256()
    for spec, digest, _ in found:
        state.update(f"{spec.name} {digest} {spec.instances}\n".encode())
    if state.hexdigest() == known:
        return messages.Registrations([], known)
    described = [
        messages.KeptRegistration(spec, digest, one.entry().payloads if with_payloads else [])
        for spec, digest, one in found
    ]
    return messages.Registrations(described, state.hexdigest())
