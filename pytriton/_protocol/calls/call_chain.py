"""The chain of a call: which models wait for it, and in which workers.

It travels on in a parameter of the request (`CHAIN_PARAMETER`), so that a chain that comes back to where it
began is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytriton._protocol.parameters import CHAIN_PARAMETER

#: Of tritonserver's environment: what proxies seal chains with, so that no client makes one up.
KEY_VARIABLE = "PYTRITON_CALLS_KEY"
_SEAL_CHARS = 32


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model that waits for a call, and the worker that can do nothing else meanwhile.

    `worker` is empty where the worker goes on with other batches: nothing can get stuck behind it.
    """

    model: str
    worker: str


_decode_chain = msgspec.json.Decoder(list[Link]).decode


def encode_chain(chain: Sequence[Link], key: bytes) -> str:
    """Return the value of `CHAIN_PARAMETER` for a chain, sealed so that only who has the key can make one."""
    encoded = msgspec.json.encode(chain)
    return _seal(encoded, key) + encoded.decode()


def decode_chain(parameters: str, key: bytes | None = None) -> list[Link]:
    """Return the chain in a request's parameters (JSON); none if it has none, or none that was sealed with `key`."""
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
    import hmac  # takes 4 ms, and a worker only reads chains that its proxy has looked at

    return hmac.digest(key, encoded, "sha256").hex()[:_SEAL_CHARS]
