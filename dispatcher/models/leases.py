"""Trials: registrations that are taken back unless the client that made them says in time that they are to stay.

    served ──▶ RenewTrial* ──▶ EndTrial(keep) ──▶ it stays
                  └─ EndTrial, or no word for lease_s: what it has replaced serves again, or nothing of its name does

So a client that changes many daemons at once may die at any moment: none of them is left with half of the change. The
time begins when the client is told that it is served, which is when the former one has ended. It begins anew with each
start of the daemon; only the registration itself is kept, not its time. One that a start cannot restore is taken back
at once.
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
    """The registrations on trial.

    Args:
        registry: has them
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: `_key` -> when it is taken back.
        self._until: dict[str, float] = {}
        #: Model and trial -> takes it back just now, and returns why that was not possible.
        self._ending: dict[tuple[str, str], asyncio.Task[RemoteFailure | None]] = {}

    async def run(self) -> None:
        """Take back what nobody has asked for in time; runs until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                try:
                    self._look()
                except Exception:
                    _log.exception("a fault of the daemon: trials were not looked at")
        finally:
            for task in self._ending.values():
                task.cancel()

    def renew(self, name: str, trial: str, share: float | None = None) -> None:
        """Begin the time of a trial anew; `share`: what balancers send there from now on.

        Raises:
            RemoteFailure: there is no such trial (any more), it is not served yet, or the share is none.
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
        """Keep a registration.

        Raises:
            RemoteFailure: there is no such trial (any more), it is not served yet, or the disk refuses; it is on trial
                then as before.
        """
        registration, _ = self._served(name, trial)
        await self._registry.amend(name, lambda: self._served(name, trial), trial=None)
        registration.events.tell(kinds.TRIAL_KEPT)

    async def take_back(self, name: str, trial: str) -> None:
        """Serve what was served before a registration on trial, or nothing of its name.

        Where that has begun already, for want of a word, its end is awaited.

        Raises:
            RemoteFailure: there is no such trial (any more), or what it has replaced cannot be served.
        """
        self._of(name, trial)
        task = self._begin_end(name, trial)
        await asyncio.wait([task])
        if task.cancelled():
            text = f"model {name} was not taken back: the daemon is stopping"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        failure = task.result()
        if failure is not None:
            raise failure

    def _of(self, name: str, trial: str) -> Registration | Entry:
        """Return what is on a trial, served or not (yet)."""
        found = self._registry.get(name) or self._registry.restoring.entry(name)
        if found is None or found.spec.trial is None or found.spec.trial.id != trial:
            raise _is_gone(name)
        return found

    def _served(self, name: str, trial: str) -> tuple[Registration, messages.Trial]:
        """Return what is on a trial and serves, and is not being taken back."""
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
                self._until.setdefault(key, now)  # no client waits for what is not served
            elif self._registry.is_placing(name):
                self._until[key] = later  # its client has not been told yet
            if now >= self._until.setdefault(key, later):
                # If it fails, it is tried again after the same time.
                self._until[key] = later
                why = f"a trial of {trial.lease_s:g} s that nobody has confirmed or prolonged"
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
            # Somebody may have kept it, or changed it, while this waits for something.
            await self._registry.take_back(name, lambda: self._of(name, trial))
        except RemoteFailure as failure:
            _log.warning("a model on trial was not taken back", model=name, reason=failure.text)
            return failure
        finally:
            del self._ending[name, trial]
        return None


def _key(one: Registration | Entry) -> str:
    """Return what tells one on trial from others, also of its name: what serves has another key each time."""
    return one.key if isinstance(one, Registration) else one.spec.name


def _is_gone(name: str) -> RemoteFailure:
    return RemoteFailure(
        ErrorKind.NOT_FOUND,
        f"model {name[:200]!r} is not on this trial (any more): it was taken back, or somebody else has changed it",
    )
