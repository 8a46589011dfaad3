"""The slots of a registration: which instance, and which version, each of its workers serves.

Each version of a Triton Python model is a program of its own, with globals and helper modules whose names may clash.
So each version has workers of its own, and a crash of one leaves the others. The slots of a pool are numbered instance
by instance, with all versions of each, so that scaling adds and removes slots at the end. A worker of any other model
serves all versions.
"""

from __future__ import annotations

import msgspec

from pytriton._protocol import messages


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
