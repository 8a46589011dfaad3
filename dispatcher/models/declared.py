"""The declaration that a client registered, as it is by now, and its payloads."""

from __future__ import annotations

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.registration_digest import digest_of, payload_hashes
from pytriton.dispatcher.models.admission import MOST_WORKERS, check_autoscale
from pytriton.dispatcher.models.persistence.state_dir import Entry


class Declared:
    """One registration's declaration and payloads.

    Args:
        entry: what the client sent, or the state directory held

    Attributes:
        spec: the declaration; scaling puts another one in its place.
        registered_at: when it was registered, seconds since the epoch.
        serial: its place in the state directory's order, if it was restored from there; else 0.
        proxied: instances that keep their Python proxies, however few are wanted.
    """

    def __init__(self, entry: Entry) -> None:
        self.spec = entry.spec
        self.registered_at = entry.registered_at
        self.serial = entry.serial
        self.proxied = 0
        self._payloads = entry.payloads
        self._hashes: list[bytes] | None = None
        self._digested: tuple[messages.ModelSpec, str] | None = None

    def digest(self) -> str:
        """Return the digest of what was registered. The first time, payloads are hashed; any thread may ask."""
        spec, digested = self.spec, self._digested
        if digested is None or digested[0] is not spec:
            if self._hashes is None:
                self._hashes = payload_hashes(self._payloads)
            self._digested = digested = (spec, digest_of(spec, self._hashes))
        return digested[1]

    def entry(self) -> Entry:
        """Return what is kept of it, as it is now."""
        return Entry(0, self.registered_at, self.spec, self._payloads)

    def payloads(self, instance: int) -> list[bytes]:
        """Return the pickled callable of an instance, and its check if there is one."""
        callables = self._payloads[: self._callables]
        own = callables[instance if len(callables) > 1 else 0]
        return [own, *self._payloads[len(callables) :]]

    def scaled(self, instances: int, autoscale: messages.Autoscale | None) -> messages.ModelSpec:
        """Return the declaration with another number of instances.

        Devices are used in turn, so all of them are kept: fewer instances now may be more again.

        Raises:
            RemoteFailure: the model cannot have so many, or cannot follow its load like this.
        """
        spec, callables = self.spec, self._callables
        if instances < 1:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: it takes at least 1")
        if 1 < callables < instances:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"model {spec.name} was registered with a list of {callables} callables, one for each instance: "
                f"it cannot have {instances}. Register it with one callable, or with a longer list and replace=True.",
            )
        if instances > MOST_WORKERS:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: at most {MOST_WORKERS}")
        if autoscale is not None:
            check_autoscale(spec, autoscale, callables=callables)
        return msgspec.structs.replace(spec, instances=instances, autoscale=autoscale)

    def keep_proxies(self) -> None:
        """Keep loads from ending a Python proxy that may have streams under way: it could not answer them any more.

        tritonserver (2.51) hears nothing from a stub that it ends, which waits for that for ever. So streams go on over
        the proxies that are there, and their workers retire.
        """
        if self.is_decoupled:
            self.proxied = max(self.proxied, self.spec.instances)

    @property
    def is_decoupled(self) -> bool:
        """Whether the model answers a request any number of times."""
        policy = self.spec.config.get("model_transaction_policy", {})
        return bool(policy.get("decoupled"))

    @property
    def queue_delay_s(self) -> float:
        """How long a request may wait in Triton's queue for others."""
        batching = self.spec.config.get("dynamic_batching", {})
        return float(batching.get("max_queue_delay_microseconds", 0)) / 1e6

    @property
    def is_bound_to_proxies(self) -> bool:
        """Whether something outlives a request in the model's proxies, so that those that can stay should.

        A fresh load forgets which sequences have begun, and Triton keeps all former proxies of a decoupled model for
        as long as a client holds a stream open on which it was answered.
        """
        return self.is_decoupled or "sequence_batching" in self.spec.config

    @property
    def _callables(self) -> int:
        """How many callables there are: one, or one for each instance; the check comes after them."""
        return len(self._payloads) - self.spec.check
