"""The digest of what was registered: the same wherever it is the same, with whatever number of instances."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from pytriton._protocol.messages.model_spec import ModelSpec

_encoder = msgspec.msgpack.Encoder()


def registration_digest(spec: ModelSpec, payloads: Sequence[bytes]) -> str:
    """Return it. How many instances there are, and on which devices, is each node's own affair; a trial passes."""
    return digest_of(spec, payload_hashes(payloads))


def payload_hashes(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the hash of each payload: of large ones it takes a while."""
    return [hashlib.sha256(payload).digest() for payload in payloads]


def digest_of(spec: ModelSpec, hashes: Sequence[bytes]) -> str:
    """Return the digest of what was registered with payloads of these hashes."""
    alike = msgspec.structs.replace(spec, instances=1, devices=[], autoscale=None, trial=None)
    return hashlib.sha256(_encoder.encode(alike) + b"".join(hashes)).hexdigest()
