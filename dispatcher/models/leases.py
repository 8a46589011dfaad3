"""Leases of provisional registrations: they are rolled back unless the client that made them confirms in time.

    served ──▶ RenewTrial* ──▶ EndTrial(keep) ──▶ it stays
                  └─ EndTrial, or lease_s without a renewal: the previous registration serves again, if there was one

A client that changes many daemons at once may crash at any moment, and none of them is left half-changed. The lease
starts when the client is notified that the model is served, which is after the previous one has ended. It restarts when
the daemon does: the registration is persisted, but not the time. If a start cannot restore the registration, it is
rolled back at once.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.admission import check_trial
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.actor import acting_for

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0


class Trials:
    """The leases of all provisional registrations.

    Args:
        registry: holds the registrations
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: `_key` -> when the lease expires.
        self._until: dict[str, float] = {}
        #: (model, trial) -> the rollback under way; returns why it failed.
        self._ending: dict[tuple[str, str], asyncio.Task[RemoteFailure | None]] = {}

    async def run(self) -> None:
        """Roll back registrations whose lease has expired. Runs until cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                try:
                    self._look()
                except Exception:
                    _log.exception("internal error: leases were not checked")
        finally:
            for task in self._ending.values():
                task.cancel()

    def renew(self, name: str, trial: str, share: float | None = None) -> None:
        """Renew a lease; `share`: the traffic share that balancers use from now on.

        Raises:
            RemoteFailure: the trial does not exist (any more) or is not served yet, or the share is invalid.
        """
        registration, found = self._served(name, trial)
        if share is not None and share != found.share:
            spec = msgspec.structs.replace(
                registration.spec, trial=msgspec.structs.replace(found, share=share)
            )
            check_trial(spec, can_be_undone=True)
            registration.spec = spec
        self._until[_key(registration)] = asyncio.get_running_loop().time() + found.lease_s

    async def keep(self, name: str, trial: str) -> None:
        """Keep a registration permanently.

        Raises:
            RemoteFailure: the trial does not exist (any more) or is not served yet, or writing to disk failed; the
                registration is still provisional then.
        """
        registration, _ = self._served(name, trial)
        await self._registry.amend(name, lambda: self._served(name, trial), trial=None)
        registration.events.tell(kinds.TRIAL_KEPT)

    async def take_back(self, name: str, trial: str) -> None:
        """Roll back a provisional registration to the one it replaced, or remove the model if there was none.

        If an expired lease has already started the rollback, wait for that to finish.

        Raises:
            RemoteFailure: the trial does not exist (any more), or the previous registration cannot be served.
        """
        self._of(name, trial)
        task = self._begin_end(name, trial)
        await asyncio.wait([task])
        if task.cancelled():
            text = f"model {name} was not rolled back: the daemon is stopping"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        failure = task.result()
        if failure is not None:
            raise failure

    def _of(self, name: str, trial: str) -> Registration | Entry:
        """Return the registration or restoring entry that belongs to a trial."""
        found = self._registry.get(name) or self._registry.restoring.entry(name)
        if found is None or found.spec.trial is None or found.spec.trial.id != trial:
            raise _is_gone(name)
        return found

    def _served(self, name: str, trial: str) -> tuple[Registration, messages.Trial]:
        """Return the served registration that belongs to a trial and is not being rolled back."""
        found = self._of(name, trial)
        if isinstance(found, Entry) and self._registry.restoring.waits(name):
            text = f"model {name!r} is not served yet: it is being restored, and is on trial then"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        if isinstance(found, Entry) or (name, trial) in self._ending:
            raise _is_gone(name)
        assert found.spec.trial is not None
        return found, found.spec.trial

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        ones = [*self._registry, *self._registry.restoring.failures().values()]
        there = {_key(one): (one, one.spec.trial) for one in ones if one.spec.trial is not None}
        self._until = {key: at for key, at in self._until.items() if key in there}
        for key, (one, trial) in there.items():
            name, later = one.spec.name, now + trial.lease_s
            if isinstance(one, Entry):
                self._until.setdefault(key, now)  # no client waits for a model that is not served
            elif self._registry.is_placing(name):
                self._until[key] = later  # its client has not been notified yet
            if now >= self._until.setdefault(key, later):
                # Retry after the same interval if it fails.
                self._until[key] = later
                why = f"a trial of {trial.lease_s:g} s that was not confirmed or renewed"
                if isinstance(one, Entry):
                    why = "a trial that could not be restored"
                with acting_for(why):
                    self._begin_end(name, trial.id)

    def _begin_end(self, name: str, trial: str) -> asyncio.Task[RemoteFailure | None]:
        which = (name, trial)
        if which not in self._ending:
            self._ending[which] = asyncio.create_task(self._end(name, trial))
        return self._ending[which]

    async def _end(self, name: str, trial: str) -> RemoteFailure | None:
        try:
            # While this waits, a client may confirm or change the registration.
            await self._registry.take_back(name, lambda: self._of(name, trial))
        except RemoteFailure as failure:
            _log.warning("provisional model was not rolled back", model=name, reason=failure.text)
            return failure
        finally:
            del self._ending[name, trial]
        return None


def _key(one: Registration | Entry) -> str:
    """Return a key that distinguishes provisional registrations, also of one name. Each deployment has a new key."""
    return one.key if isinstance(one, Registration) else one.spec.name


def _is_gone(name: str) -> RemoteFailure:
    return RemoteFailure(
        ErrorKind.NOT_FOUND,
        f"model {name[:200]!r} is not on this trial (any more): it was taken back, or another client has changed it",
    )
