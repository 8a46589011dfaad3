"""Which worker of a registration serves what: an instance of it, and where versions have own workers, one of these.

Of a Triton Python model, every version is a program of its own: helper modules of the same names, globals, a crash.
So each has workers of its own. The slots of a pool are numbered instance by instance, with all versions of each,
so that scaling adds and removes slots at the end. Of any other model a worker serves all versions.
"""

from __future__ import annotations

import msgspec

from pytriton.ipc import messages


def versions(spec: messages.ModelSpec) -> list[int]:
    """Return the versions that have workers of their own; none: each worker serves all there are."""
    return spec.versions if spec.python_model is not None else []


def count(spec: messages.ModelSpec) -> int:
    """Return how many workers a registration has, with the spares."""
    return (spec.instances + spec.spares) * max(1, len(versions(spec)))


def instance_of(spec: messages.ModelSpec, slot: int) -> int:
    """Return which instance a slot is of; those from `spec.instances` on are spares."""
    return slot // max(1, len(versions(spec)))


def taken_by(spec: messages.ModelSpec, slot: int) -> tuple[messages.ModelSpec, int]:
    """Return what the worker in a slot is told: the declaration, with its own version, and its instance."""
    own = versions(spec)
    if own:
        version = own[slot % len(own)]
        spec = msgspec.structs.replace(spec, version=version, versions=[])
    return spec, slot if not own else slot // len(own)
