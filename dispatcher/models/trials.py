"""Trials: registrations that are taken back unless the client that made them says in time that they are to stay.

    served ──▶ RenewTrial* ──▶ EndTrial(keep) ──▶ it stays
                  └─ EndTrial, or no word for lease_s: what it has replaced serves again, or nothing of its name does

So a client that changes many daemons at once may die at any moment: none of them is left with half of the change. The
time begins anew with each start of the daemon; only the registration itself is kept, not its time.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from pytriton.dispatcher.events import kinds
from pytriton.dispatcher.events.actor import acting_for
from pytriton.dispatcher.models.admission import check_trial
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0


class Trials:
    """The registrations on trial.

    Args:
        registry: has them
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: Registration's key -> when it is taken back.
        self._until: dict[str, float] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Take back what nobody has asked for in time; runs until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                self._look()
        finally:
            for task in self._ending.values():
                task.cancel()

    def renew(self, name: str, trial: str, share: float | None = None) -> None:
        """Begin the time of a trial anew; `share`: what balancers send there from now on.

        Raises:
            RemoteFailure: there is no such trial (any more), or the share is none.
        """
        registration, found = self._of(name, trial)
        if share is not None and share != found.share:
            spec = msgspec.structs.replace(
                registration.spec, trial=msgspec.structs.replace(found, share=share)
            )
            check_trial(spec, can_be_undone=True)
            registration.spec = spec
        self._until[registration.key] = asyncio.get_running_loop().time() + found.lease_s

    async def keep(self, name: str, trial: str) -> None:
        """Have a registration stay.

        Raises:
            RemoteFailure: there is no such trial (any more), or the disk refuses; it is on trial then as before.
        """
        registration, _ = self._of(name, trial)
        await self._registry.amend(name, registration, trial=None)
        registration.events.tell(kinds.TRIAL_KEPT)

    async def take_back(self, name: str, trial: str) -> None:
        """Serve what was served before a registration on trial, or nothing of its name.

        Raises:
            RemoteFailure: there is no such trial (any more), or what it has replaced cannot be served.
        """
        registration, _ = self._of(name, trial)
        await self._registry.take_back(registration)

    def _of(self, name: str, trial: str) -> tuple[Registration, messages.Trial]:
        registration = self._registry.get(name)
        found = None if registration is None else registration.spec.trial
        if registration is None or found is None or found.id != trial:
            raise RemoteFailure(
                ErrorKind.NOT_FOUND,
                f"model {name[:200]!r} is not on this trial (any more): it was taken back, or somebody else has "
                "changed it",
            )
        return registration, found

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        there = {one.key: one for one in self._registry if one.spec.trial is not None}
        self._until = {key: at for key, at in self._until.items() if key in there}
        for key, registration in there.items():
            trial = registration.spec.trial
            assert trial is not None
            if now >= self._until.setdefault(key, now + trial.lease_s):
                # Should it fail, it is tried again after the same time.
                self._until[key] = now + trial.lease_s
                if key not in self._ending:
                    self._ending[key] = asyncio.create_task(self._end(registration, trial))

    async def _end(self, registration: Registration, trial: messages.Trial) -> None:
        name = registration.spec.name
        why = f"a trial of {trial.lease_s:g} s that nobody has confirmed or prolonged"
        try:
            with acting_for(why):
                await self.take_back(name, trial.id)
        except RemoteFailure as failure:
            _log.warning("a model on trial was not taken back", model=name, reason=failure.text)
        finally:
            del self._ending[registration.key]
