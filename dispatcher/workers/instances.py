"""The instances of one registration, and what their supervisors say together: who serves, and why nobody does."""

from __future__ import annotations

from collections.abc import Callable

from pytriton._protocol import messages
from pytriton.dispatcher.workers.process import slots
from pytriton.dispatcher.workers.sleep import Sleep
from pytriton.dispatcher.workers.supervisor import Supervisor


class Instances:
    """The supervisors of one pool, by slot.

    Args:
        spec: the declaration
        sleep: of the pool's workers
        native: the proxies are compiled ones

    Attributes:
        spec: the declaration, with the number of instances that it has by now.
        supervisors: by slot; the pool adds and removes them at the end.
        stopping: all of them are being ended.
        given_up_for: why no worker will come any more; None while one may.
    """

    def __init__(self, spec: messages.ModelSpec, sleep: Sleep, *, native: bool = False) -> None:
        self.spec = spec
        self.supervisors: list[Supervisor] = []
        self.stopping = False
        self.given_up_for: str | None = None
        self._sleep = sleep
        self._native = native
        self._overlaps = False  #: a worker has said that its batches do

    @property
    def lanes(self) -> int:
        """How many proxies are to feed each worker: as many as there may be batches that overlap.

        A Python proxy is a process, so there are no more of these than were asked for.
        """
        spec = self.spec
        if not self._native or self._is_streamed:
            return spec.lanes
        if not self._overlaps:
            serving = [one.serving for one in self.supervisors if one.serving is not None]
            self._overlaps = any(worker.gauge.read().overlaps for worker in serving)
        return spec.max_concurrency if self._overlaps else spec.lanes

    @property
    def _is_streamed(self) -> bool:
        """Whether several batches go over one lane."""
        policy = self.spec.config.get("model_transaction_policy", {})
        return self.spec.python_model is not None or bool(policy.get("decoupled"))

    @property
    def own_versions(self) -> list[int]:
        """The versions that have workers of their own; none: each worker serves all there are."""
        return slots.versions(self.spec)

    def ready(self, version: int | None = None) -> list[str]:
        """Return the names of the workers that serve (a version)."""
        return [one.serving.name for one in self._of(version) if one.serving is not None]

    def is_hopeless(self, version: int | None = None) -> bool:
        """Whether no worker is to be expected soon: all have been given up, or are in a crash loop."""
        if self.given_up_for is not None or self._sleep.asleep or self._sleep.lacks_room:
            return self.given_up_for is not None
        return all(supervisor.is_hopeless for supervisor in self._of(version))

    def problems(self) -> list[str]:
        """Return a sentence about each instance whose workers end one after the other."""
        name = self.spec.name
        return [
            f"model {name}: {text}; see pytriton-daemon logs {name}"
            for text in (supervisor.problem() for supervisor in self.supervisors)
            if text is not None
        ]

    def degradations(self) -> list[str]:
        """Return why instances of the model itself, spares aside, do not serve as they should, a sentence each."""
        found = []
        for one in self.supervisors:
            if self._is_spare(one):
                continue
            text, worker = one.problem(), one.worker
            if (
                text is None
                and worker is not None
                and worker.alive
                and worker.unwilling is not None
            ):
                why = worker.unwilling or "it does not say why"
                text = f"instance {one.index}: the model's own is_ready says no: {why}"
            if text is not None:
                found.append(text)
        return found

    def why_nobody(self, version: int | None = None) -> str:
        """Say why no worker will come, or not soon (for a version)."""
        name = self.spec.name
        if self.given_up_for is not None:
            return self.given_up_for
        if self.stopping:
            return f"model {name} is being stopped"
        told = "; ".join(text for text in (one.problem() for one in self._of(version)) if text)
        return f"model {name} has no worker: {told}. See pytriton-daemon logs {name}"

    def infos(self, lanes_of: Callable[[str], int]) -> list[messages.InstanceInfo]:
        """Return what status shows; `lanes_of` tells how many proxies a worker serves."""
        return [
            supervisor.info(
                lanes_of(supervisor.worker.name) if supervisor.worker is not None else 0,
                spare=self._is_spare(supervisor),
            )
            for supervisor in self.supervisors
        ]

    def _is_spare(self, supervisor: Supervisor) -> bool:
        return self._sleep.asleep or supervisor.index >= self.spec.instances

    def _of(self, version: int | None) -> list[Supervisor]:
        """Return those that serve a version; None: all."""
        wanted = (None, version)
        return [one for one in self.supervisors if version is None or one.version in wanted]
