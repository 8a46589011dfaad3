"""A registration's current declaration and payloads, and the fields of `status` derived from the declaration."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages.model_spec import digest_of, payload_hashes
from pytriton.dispatcher.models.admission import MAX_WORKERS, check_autoscale
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.workers.worker_process import DaemonCpus, thread_share


class CurrentDeclaration:
    """Declaration and payloads of one registration.

    Args:
        entry: what the client sent, or what the state directory contains

    Attributes:
        spec: the declaration; scaling replaces it.
        registered_at: when it was registered, in seconds since the epoch.
        serial: its position in the state directory's order if it was restored from there, else 0.
        proxied: number of instances that keep their Python proxies even after the model is scaled down.
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
        """Return the pickled callable of an instance, followed by the model's check if it has one."""
        callables = self._payloads[: self._callables]
        own = callables[instance if len(callables) > 1 else 0]
        return [own, *self._payloads[len(callables) :]]

    def scaled(self, instances: int, autoscale: messages.Autoscale | None) -> messages.ModelSpec:
        """Return a copy of the declaration with a different number of instances.

        It keeps all devices: they are assigned in turn, and the model may be scaled up again.

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
                f"it cannot have {instances} instances. Register it with one callable, or with a longer list and replace=True.",
            )
        if instances > MAX_WORKERS:
            raise RemoteFailure(
                ErrorKind.INVALID, f"instances={instances}: at most {MAX_WORKERS} are allowed"
            )
        if autoscale is not None:
            check_autoscale(spec, autoscale, callables=callables)
        return msgspec.structs.replace(spec, instances=instances, autoscale=autoscale)

    def keep_proxies(self) -> None:
        """Keep the Python proxies of a decoupled model when it is scaled down, because they may have open streams.

        tritonserver 2.51 ignores the responses of a stub that it is stopping, and the stub waits forever. So the
        proxies keep serving their streams while their workers are stopped.
        """
        if self.is_decoupled:
            self.proxied = max(self.proxied, self.spec.instances)

    @property
    def is_decoupled(self) -> bool:
        """Whether the model may answer a request with any number of responses."""
        policy = self.spec.config.get("model_transaction_policy", {})
        return bool(policy.get("decoupled"))

    @property
    def queue_delay_s(self) -> float:
        """Maximum time that a request waits in Triton's queue to be batched, in seconds."""
        batching = self.spec.config.get("dynamic_batching", {})
        return float(batching.get("max_queue_delay_microseconds", 0)) / 1e6

    @property
    def is_bound_to_proxies(self) -> bool:
        """Whether the model's proxies hold state that outlasts a request and should therefore be kept where possible.

        A new load forgets which sequences have begun. Triton also keeps all previous proxies of a decoupled model while
        a client keeps the gRPC stream of a response open.
        """
        return self.is_decoupled or "sequence_batching" in self.spec.config

    @property
    def _callables(self) -> int:
        """The number of pickled callables: one, or one for each instance. The check's payload follows them."""
        return len(self._payloads) - self.spec.check


def info_of(
    spec: messages.ModelSpec,
    state: str,
    registered_at: float,
    instances: Sequence[messages.InstanceInfo] = (),
    cpus: DaemonCpus | None = None,
) -> messages.ModelInfo:
    """Return the part of a model's status that follows from its specification and the `cpus`. Callers add the rest."""
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
        threads=thread_share(spec, cpus),
        route="" if spec.web is None else spec.web.path,
    )
