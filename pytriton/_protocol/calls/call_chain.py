"""The chain of a call: the models that wait for it, and their workers.

Each call carries its chain in a request parameter (`CHAIN_PARAMETER`), so that a chain that returns to its start
is detected.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytriton._protocol.parameters import CHAIN_PARAMETER

#: Variable in tritonserver's environment with the key that seals chains, so that clients cannot forge one.
KEY_VARIABLE = "PYTRITON_CALLS_KEY"
_SEAL_CHARS = 32


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model that waits for a call, and the worker that is blocked by it.

    `worker` is empty if the worker can process other batches in the meantime: nothing can deadlock behind it.
    """

    model: str
    worker: str


_decode_chain = msgspec.json.Decoder(list[Link]).decode


def encode_chain(chain: Sequence[Link], key: bytes) -> str:
    """Return the value of `CHAIN_PARAMETER` for a chain, sealed with `key` so that only key holders can create one."""
    encoded = msgspec.json.encode(chain)
    return _seal(encoded, key) + encoded.decode()


def decode_chain(parameters: str, key: bytes | None = None) -> list[Link]:
    """Return the chain in a request's parameters (JSON). Empty if there is none or `key` did not seal it."""
    if CHAIN_PARAMETER not in parameters:
        return []
    try:
        value: str = msgspec.json.decode(parameters).get(CHAIN_PARAMETER, "")
        seal, encoded = value[:_SEAL_CHARS], value[_SEAL_CHARS:].encode()
        if key is not None and not _is_sealed(encoded, key, seal):
            return []
        return _decode_chain(encoded)
    except (msgspec.DecodeError, UnicodeError, AttributeError, TypeError):
        return []


def _is_sealed(encoded: bytes, key: bytes, seal: str) -> bool:
    import hmac

    return hmac.compare_digest(_seal(encoded, key), seal)


def _seal(encoded: bytes, key: bytes) -> str:
    import hmac  # takes 4 ms; a worker only reads chains that its proxy has verified

    return hmac.digest(key, encoded, "sha256").hex()[:_SEAL_CHARS]
