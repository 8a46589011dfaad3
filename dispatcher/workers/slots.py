"""The slots of a registration: which instance and which version each worker serves.

Each version of a Triton Python model is a separate program, whose globals and helper modules may clash with those of
other versions. So each version has its own workers, and a crash of one version does not affect the others. Slots are
numbered instance by instance, with all versions of each, so that scaling adds and removes slots at the end. A worker of
any other model serves all versions.
"""

from __future__ import annotations

import msgspec

from pytriton._protocol import messages


def versions(spec: messages.ModelSpec) -> list[int]:
    """Return the versions that have their own workers; empty if each worker serves all versions."""
    return spec.versions if spec.python_model is not None else []


def count(spec: messages.ModelSpec) -> int:
    """Return the number of workers of a registration, including standby workers."""
    return (spec.instances + spec.standby_workers) * max(1, len(versions(spec)))


def instance_of(spec: messages.ModelSpec, slot: int) -> int:
    """Return the instance number of a slot. Numbers from `spec.instances` on are standby workers."""
    return slot // max(1, len(versions(spec)))


def worker_spec(spec: messages.ModelSpec, slot: int) -> tuple[messages.ModelSpec, int]:
    """Return the declaration for the worker in a slot, with only that worker's version, and its instance number."""
    own = versions(spec)
    if own:
        version = own[slot % len(own)]
        spec = msgspec.structs.replace(spec, version=version, versions=[])
    return spec, slot if not own else slot // len(own)
