"""The digest of what was registered: the same wherever it is the same, with whatever number of instances."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from pytriton.ipc.messages.model_spec import ModelSpec

_encoder = msgspec.msgpack.Encoder()


def registration_digest(spec: ModelSpec, payloads: Sequence[bytes]) -> str:
    """Return it. How many instances there are, and on which devices, is each node's own affair."""
    alike = msgspec.structs.replace(spec, instances=1, devices=[], autoscale=None)
    found = hashlib.sha256(_encoder.encode(alike))
    for payload in payloads:
        found.update(hashlib.sha256(payload).digest())
    return found.hexdigest()
