"""Leases of provisional registrations. A registration is rolled back unless its client confirms it in time.

    served ──▶ RenewLease* ──▶ EndLease(keep) ──▶ permanent
                  └─ EndLease, or duration_s without a renewal: the previous registration, if any, serves again

If a client crashes while it is changing many daemons, each daemon rolls the change back. The lease starts when the
client is notified that the model is served, after the previous registration has ended. When the daemon restarts, so
does the lease: the registration is persisted, but not the time. A registration that cannot be restored is rolled back
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.admission import check_lease
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.tasks import next_change
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import acting_for

_log = structlog.get_logger(__name__)
#: Interval between checks of whether a provisional registration is still being deployed, in seconds.
_POLL_INTERVAL_S = 1.0


class LeaseManager:
    """The leases of all provisional registrations.

    Args:
        registry: holds the registrations
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: `_key` -> when the lease expires.
        self._deadlines: dict[str, float] = {}
        #: (model, lease) -> the rollback under way; returns why it failed.
        self._ending: dict[tuple[str, str], asyncio.Task[RemoteFailure | None]] = {}

    async def run(self) -> None:
        """Roll back each registration when its lease expires, until cancelled."""
        registry = self._registry
        try:
            while True:
                left_s: float | None = _POLL_INTERVAL_S
                try:
                    left_s = self._end_expired()
                except Exception:
                    _log.exception("internal error: leases were not checked")
                await next_change(registry.changes, registry.restoring.changes, timeout_s=left_s)
        finally:
            for task in self._ending.values():
                task.cancel()

    def renew(self, name: str, lease: str, share: float | None = None) -> None:
        """Renew a lease. From now on, balancers use `share` as the model's share of the traffic.

        Raises:
            RemoteFailure: the lease does not exist, its model is not served yet, or the share is invalid.
        """
        registration, found = self._find_served(name, lease)
        if share is not None and share != found.share:
            spec = msgspec.structs.replace(
                registration.spec, lease=msgspec.structs.replace(found, share=share)
            )
            check_lease(spec, can_roll_back=True)
            registration.spec = spec
        self._deadlines[_key(registration)] = asyncio.get_running_loop().time() + found.duration_s

    async def keep(self, name: str, lease: str) -> None:
        """Make a provisional registration permanent.

        Raises:
            RemoteFailure: the lease does not exist, its model is not served yet, or writing to disk failed. In the last
                case the registration stays provisional.
        """
        registration, _ = self._find_served(name, lease)
        await self._registry.amend(name, lambda: self._find_served(name, lease), lease=None)
        registration.events.emit(kinds.REGISTRATION_CONFIRMED)

    async def roll_back(self, name: str, lease: str) -> None:
        """Roll back a provisional registration to the one it replaced; remove the model if there was none.

        If the lease has expired, wait for the rollback in progress.

        Raises:
            RemoteFailure: the lease does not exist, or the previous registration cannot be served.
        """
        self._find(name, lease)
        task = self._begin_end(name, lease)
        await asyncio.wait([task])
        if task.cancelled():
            text = f"model {name} was not rolled back: the daemon is stopping"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        failure = task.result()
        if failure is not None:
            raise failure

    def _find(self, name: str, lease: str) -> Registration | Entry:
        """Return what a lease belongs to: a registration, or an entry that has yet to be restored."""
        found = self._registry.served.get(name) or self._registry.restoring.entry(name)
        if found is None or found.spec.lease is None or found.spec.lease.id != lease:
            raise _not_found(name)
        return found

    def _find_served(self, name: str, lease: str) -> tuple[Registration, messages.Lease]:
        """Return the served registration that belongs to a lease and is not being rolled back."""
        found = self._find(name, lease)
        if isinstance(found, Entry) and self._registry.restoring.is_restoring(name):
            text = f"model {name!r} is not served yet: it is being restored, and then stays provisional"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        if isinstance(found, Entry) or (name, lease) in self._ending:
            raise _not_found(name)
        assert found.spec.lease is not None
        return found, found.spec.lease

    def _provisional(self) -> Iterator[tuple[Registration | Entry, messages.Lease]]:
        """Yield the provisional registrations, and the entries of those that could not be restored."""
        for one in (*self._registry.served, *self._registry.restoring.failures().values()):
            if one.spec.lease is not None:
                yield one, one.spec.lease

    def _end_expired(self) -> float | None:
        """Begin rolling back the registrations whose leases have expired.

        Returns:
            the number of seconds until the next check, or None if no registration is provisional. The caller checks
            earlier if a registration changes.
        """
        now = asyncio.get_running_loop().time()
        provisional = {_key(one): (one, lease) for one, lease in self._provisional()}
        self._deadlines = {key: at for key, at in self._deadlines.items() if key in provisional}
        is_deploying = False
        for key, (one, lease) in provisional.items():
            name, later = one.spec.name, now + lease.duration_s
            if isinstance(one, Entry):
                self._deadlines.setdefault(
                    key, now
                )  # no client waits for a model that is not served
            elif self._registry.is_deploying(name):
                self._deadlines[key] = later  # its client has not been notified yet
                is_deploying = True
            if now >= self._deadlines.setdefault(key, later):
                # Retry after the same interval if it fails.
                self._deadlines[key] = later
                why = f"a lease of {lease.duration_s:g} s that was not confirmed or renewed"
                if isinstance(one, Entry):
                    why = "a provisional registration that could not be restored"
                with acting_for(why):
                    self._begin_end(name, lease.id)
        if is_deploying:
            return _POLL_INTERVAL_S
        return min(self._deadlines.values()) - now if self._deadlines else None

    def _begin_end(self, name: str, lease: str) -> asyncio.Task[RemoteFailure | None]:
        which = (name, lease)
        if which not in self._ending:
            self._ending[which] = asyncio.create_task(self._end(name, lease))
        return self._ending[which]

    async def _end(self, name: str, lease: str) -> RemoteFailure | None:
        try:
            # While this waits, a client may confirm or change the registration.
            await self._registry.undo(name, lambda: self._find(name, lease))
        except RemoteFailure as failure:
            _log.warning("provisional model was not rolled back", model=name, reason=failure.text)
            return failure
        finally:
            del self._ending[name, lease]
        return None


def _key(one: Registration | Entry) -> str:
    """Return a key that is different for each deployment of a provisional registration, even if the name is the
    same.
    """
    return one.key if isinstance(one, Registration) else one.spec.name


def _not_found(name: str) -> RemoteFailure:
    return RemoteFailure(
        ErrorKind.NOT_FOUND,
        f"model {name[:200]!r} has no such lease: it was rolled back, or another client has changed it",
    )
