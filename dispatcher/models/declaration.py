"""A registration's current declaration and its payloads, and what `status` shows of a declaration."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages.model_spec import digest_of, payload_hashes
from pytriton.dispatcher.models.admission import MAX_WORKERS, check_autoscale
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.workers.worker_process import thread_share


class CurrentDeclaration:
    """One registration's declaration and payloads.

    Args:
        entry: what the client sent, or what the state directory contains

    Attributes:
        spec: the declaration; scaling replaces it.
        registered_at: when it was registered, in seconds since the epoch.
        serial: its position in the state directory's order if it was restored from there, else 0.
        proxied: the number of instances that keep their Python proxies even after scaling down.
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
        """Return the digest of the registration. The first call hashes the payloads. Thread-safe."""
        spec, digested = self.spec, self._digested
        if digested is None or digested[0] is not spec:
            if self._hashes is None:
                self._hashes = payload_hashes(self._payloads)
            self._digested = digested = (spec, digest_of(spec, self._hashes))
        return digested[1]

    def entry(self) -> Entry:
        """Return the entry to persist, with the current declaration."""
        return Entry(0, self.registered_at, self.spec, self._payloads)

    def payloads(self, instance: int) -> list[bytes]:
        """Return the pickled callable of an instance, and its check if there is one."""
        callables = self._payloads[: self._callables]
        own = callables[instance if len(callables) > 1 else 0]
        return [own, *self._payloads[len(callables) :]]

    def scaled(self, instances: int, autoscale: messages.Autoscale | None) -> messages.ModelSpec:
        """Return the declaration with a different number of instances.

        All devices are kept, since they are assigned in turn and the model may be scaled up again.

        Raises:
            RemoteFailure: the model cannot have this number of instances, or cannot be autoscaled this way.
        """
        spec, callables = self.spec, self._callables
        if instances < 1:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: it must be at least 1")
        if 1 < callables < instances:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"model {spec.name} was registered with a list of {callables} callables, one for each instance: "
                f"it cannot have {instances}. Register it with one callable, or with a longer list and replace=True.",
            )
        if instances > MAX_WORKERS:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: at most {MAX_WORKERS}")
        if autoscale is not None:
            check_autoscale(spec, autoscale, callables=callables)
        return msgspec.structs.replace(spec, instances=instances, autoscale=autoscale)

    def keep_proxies(self) -> None:
        """Keep loads from ending Python proxies that may have open streams, which they could no longer answer.

        tritonserver 2.51 does not listen to a stub that it is ending, and the stub waits for that forever. So the
        existing proxies keep serving their streams while their workers are retired.
        """
        if self.is_decoupled:
            self.proxied = max(self.proxied, self.spec.instances)

    @property
    def is_decoupled(self) -> bool:
        """Return whether the model may answer a request with any number of responses."""
        policy = self.spec.config.get("model_transaction_policy", {})
        return bool(policy.get("decoupled"))

    @property
    def queue_delay_s(self) -> float:
        """How long a request may wait in Triton's queue to be batched, in seconds."""
        batching = self.spec.config.get("dynamic_batching", {})
        return float(batching.get("max_queue_delay_microseconds", 0)) / 1e6

    @property
    def is_bound_to_proxies(self) -> bool:
        """Return whether the model's proxies hold state beyond a request, so they should be kept where possible.

        A new load forgets which sequences have begun. Triton also keeps all previous proxies of a decoupled model for
        as long as a client holds the stream open on which it was answered.
        """
        return self.is_decoupled or "sequence_batching" in self.spec.config

    @property
    def _callables(self) -> int:
        """The number of callables: one, or one per instance. The check follows them."""
        return len(self._payloads) - self.spec.check


def info_of(
    spec: messages.ModelSpec,
    state: str,
    registered_at: float,
    instances: Sequence[messages.InstanceInfo] = (),
) -> messages.ModelInfo:
    """Return the status fields given by the specification. Callers add the rest."""
    return messages.ModelInfo(
        name=spec.name,
        version=spec.version,
        versions=spec.versions,
        state=state,
        instances=list(instances),
        python=spec.world.python,
        registered_at=registered_at,
        isolation=spec.isolation,
        lease=spec.lease,
        threads=thread_share(spec),
    )
