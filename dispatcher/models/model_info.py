"""The part of a model's status that is derived from its specification, for served and waiting models."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton._protocol import messages
from pytriton.dispatcher.workers.worker_process import thread_share


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
