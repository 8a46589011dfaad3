"""The digest of a registration, identical for identical registrations, whatever their number of instances."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from pytriton._protocol.messages.model_spec import ModelSpec

_encoder = msgspec.msgpack.Encoder()


def registration_digest(spec: ModelSpec, payloads: Sequence[bytes]) -> str:
    """Return the digest. Ignores the number of instances and their devices, which differ by node, and a lease."""
    return digest_of(spec, payload_hashes(payloads))


def payload_hashes(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the hash of each payload. Slow for large payloads."""
    return [hashlib.sha256(payload).digest() for payload in payloads]


def digest_of(spec: ModelSpec, hashes: Sequence[bytes]) -> str:
    """Return the digest of a registration whose payloads have these hashes."""
    alike = msgspec.structs.replace(spec, instances=1, devices=[], autoscale=None, lease=None)
    return hashlib.sha256(_encoder.encode(alike) + b"".join(hashes)).hexdigest()
