"""The instances of one registration: their supervisors, and queries about them for `status` and routing."""

from __future__ import annotations

from collections.abc import Callable

from pytriton._protocol import messages
from pytriton.dispatcher.workers.supervisor import Supervisor
from pytriton.dispatcher.workers.suspension import Suspension
from pytriton.dispatcher.workers.worker import own_versions

#: Number of lanes of a worker whose model leaves it to the dispatcher. The only worker of a model has more: a proxy takes
#: longer to return a response and fetch the next request than a fast callable to answer. With several workers, requests
#: on the lanes of a busy worker would wait there while another worker is idle.
_LANES, _LANES_OF_ONLY_WORKER = 2, 4


class Instances:
    """The instances of one pool, each with a supervisor.

    Args:
        spec: The model's declaration.
        suspension: Suspension state of the pool's workers.
        native: Whether the proxies are native (compiled) ones.

    Attributes:
        spec: The model's declaration, with the current number of instances.
        supervisors: By slot. The pool adds and removes supervisors at the end.
        stopping: Whether all workers are being stopped.
        disabled_reason: Why no more workers will be started; None if they may be.
    """

    def __init__(
        self, spec: messages.ModelSpec, suspension: Suspension, *, native: bool = False
    ) -> None:
        self.spec = spec
        self.supervisors: list[Supervisor] = []
        self.stopping = False
        self.disabled_reason: str | None = None
        self._suspension = suspension
        self._native = native
        self._overlaps = False  #: whether a worker has reported overlapping batches

    @property
    def lanes(self) -> int:
        """The number of proxies that each worker should serve.

        Python proxies are processes, so their number never exceeds `max_inflight_batches`, or `_LANES` by default.
        """
        spec = self.spec
        if self.overlap:
            return spec.max_concurrency
        is_only = self._native and spec.instances == 1
        return spec.max_inflight_batches or (_LANES_OF_ONLY_WORKER if is_only else _LANES)

    @property
    def overlap(self) -> bool:
        """Whether each batch that may run concurrently in a worker has a proxy: a worker has reported overlapping batches."""
        if not self._native or self._is_streamed:
            return False
        if not self._overlaps:
            serving = [one.serving for one in self.supervisors if one.serving is not None]
            self._overlaps = any(worker.stats.read().overlaps for worker in serving)
        return self._overlaps

    @property
    def _is_streamed(self) -> bool:
        """Whether a lane carries several batches at the same time."""
        policy = self.spec.config.get("model_transaction_policy", {})
        return self.spec.python_model is not None or bool(policy.get("decoupled"))

    @property
    def own_versions(self) -> list[int]:
        """The versions that have their own workers; empty if each worker serves all versions."""
        return own_versions(self.spec)

    def ready(self, version: int | None = None) -> list[str]:
        """Return the names of the ready workers. With `version`, consider only workers that serve this version."""
        return [one.serving.name for one in self._of(version) if one.serving is not None]

    def is_crash_looping(self, version: int | None = None) -> bool:
        """Return whether every instance is in a crash loop or has reached its restart limit."""
        if (
            self.disabled_reason is not None
            or self._suspension.suspended
            or self._suspension.lacks_room
        ):
            return self.disabled_reason is not None
        return all(supervisor.is_crash_looping for supervisor in self._of(version))

    def problems(self) -> list[str]:
        """Return a sentence about each instance that keeps losing its workers."""
        name = self.spec.name
        return [
            f"model {name}: {text}; see pytriton-daemon logs {name}"
            for text in (supervisor.problem() for supervisor in self.supervisors)
            if text is not None
        ]

    def degradations(self) -> list[str]:
        """Return one sentence for each instance that is degraded. Standby workers do not count."""
        found = []
        for one in self.supervisors:
            if self._is_standby(one):
                continue
            text, worker = one.problem(), one.worker
            if (
                text is None
                and worker is not None
                and worker.alive
                and worker.not_ready_reason is not None
            ):
                why = worker.not_ready_reason or "it gives no reason"
                text = f"instance {one.index}: the model's is_ready returns false: {why}"
            if text is not None:
                found.append(text)
        return found

    def why_no_worker(self, version: int | None = None) -> str:
        """Explain why no worker (of one version, if given) is available or expected soon."""
        name = self.spec.name
        if self.disabled_reason is not None:
            return self.disabled_reason
        if self.stopping:
            return f"model {name} is being stopped"
        problems = "; ".join(text for text in (one.problem() for one in self._of(version)) if text)
        return f"model {name} has no worker: {problems}. See pytriton-daemon logs {name}"

    def infos(self, lanes_of: Callable[[str], int]) -> list[messages.InstanceInfo]:
        """Return the instances as `status` shows them. `lanes_of` returns how many proxies a worker serves."""
        return [
            supervisor.info(
                lanes_of(supervisor.worker.name) if supervisor.worker is not None else 0,
                standby=self._is_standby(supervisor),
            )
            for supervisor in self.supervisors
        ]

    def _is_standby(self, supervisor: Supervisor) -> bool:
        return self._suspension.suspended or supervisor.index >= self.spec.instances

    def _of(self, version: int | None) -> list[Supervisor]:
        """Return the supervisors of the workers that serve `version`. None selects all supervisors."""
        wanted = (None, version)
        return [one for one in self.supervisors if version is None or one.version in wanted]
