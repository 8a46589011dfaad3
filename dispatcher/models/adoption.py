"""Handover of the served models to the next version of the daemon during an upgrade."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.dispatcher.models.deployer import ModelDeployer
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.runtime.upgrade_snapshot import (
    HandOver,
    RegistrationState,
    UnusableHandOver,
)
from pytriton.dispatcher.workers.pool import AdoptWorker


class Adoption:
    """Both ends of the handover.

    Args:
        served: the models
        serving: deploys and removes models
        restoring: the persisted models that are not served yet, with their payloads
    """

    def __init__(self, served: ServedModels, deployer: ModelDeployer, restoring: Restorer) -> None:
        self._served = served
        self._deployer = deployer
        self._restoring = restoring

    @property
    def serial(self) -> int:
        """The number of the last registration."""
        return self._deployer.serial

    def why_not_quiescent(self) -> str:
        """Describe a change under way that prevents a handover; "" if there is none."""
        under_way = self._restoring.under_way
        if under_way is not None:
            return f"model {under_way} is being restored"
        for key, registration in self._served.keys.items():
            name = registration.spec.name
            if self._served.names.get(name) is not registration:
                return f"model {name} is being registered, replaced or unregistered"
            if not self._deployer.reservations.is_free(name) or not registration.is_quiescent:
                return f"a worker of model {key.partition('#')[0]} is being started or ended"
        return ""

    def hand_over(self, owner_of: Callable[[Registration], int | None]) -> list[RegistrationState]:
        """Return the state of all models, in order; all must be quiescent. `owner_of` returns an owner's pid."""
        return [one.hand_over(owner_of(one)) for one in self._served]

    def adopt(self, state: HandOver, adopt_worker: AdoptWorker) -> list[Registration]:
        """Adopt the models that the previous version of this process served.

        Raises:
            UnusableHandOver: the state directory no longer has the payloads of one of them.
        """
        self._deployer.serial = state.serials[1]
        for counters in state.counters:
            self._served.counter_registry.of(counters.name).adopt(counters)
        kept = {one.spec.name: one.payloads for one in self._restoring.entries()}
        adopted = []
        for one in state.registrations:
            if one.kept and one.spec.name not in kept:
                raise UnusableHandOver(
                    f"the state directory does not have model {one.spec.name} any more"
                )
            payloads = kept[one.spec.name] if one.kept else one.payloads
            entry = Entry(0, one.registered_at, one.spec, payloads)
            adopted.append(self._deployer.adopt(one, entry, adopt_worker))
        self._deployer.changes.notify()
        return adopted
