"""Calls to other models: the connection on which a worker asks a proxy to make them, and what travels on it.

Each proxy of a worker has such a connection to it, in addition to its lane: calls are independent of batches. Any
thread of a worker may call, many calls may be in flight at once, and answers come in any order::

    worker                                                   proxy
      │  Call(id, model, inputs → memory, offset, shape)        │
      │────────────────────────────────────────────────────────▶│ pb_utils.InferenceRequest(…).exec()
      │                Answer(id, outputs → memory, …, final)   │   one; or many, the last one final
      │◀────────────────────────────────────────────────────────│
      │  AnswerRead(id)     its memory may be used again        │
      │────────────────────────────────────────────────────────▶│
      │  CallCancelled(id)  its model may stop                  │
      │  CallDropped(id)    no one waits for it any more        │
      │────────────────────────────────────────────────────────▶│
      │                Retiring()   make no new calls here      │
      │◀────────────────────────────────────────────────────────│

The worker listens at `socket_path` (call_connection.py); the proxy connects before it sends a batch. The worker
accepts connections when it first makes a call, so a worker that makes none needs no thread for them. Inputs lie in
memory of the worker (`Slots`), outputs where Triton put them. If either end dies, the other sees end-of-file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import msgspec

from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.parameters import CHAIN_PARAMETER

#: Error code of an answer that means: ask another proxy.
MOVED = "MOVED"
#: Variable in tritonserver's environment with the key that seals chains, so that clients cannot forge one.
KEY_VARIABLE = "PYTRITON_CALLS_KEY"
_SEAL_CHARS = 32


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model that waits for a call, and the worker that is blocked by it.

    `worker` is empty if the worker can process other batches in the meantime: nothing can deadlock behind it.
    """

    model: str
    worker: str


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base class of all messages about calls."""


class Call(_Message, frozen=True):
    """worker → proxy: call a model.

    `version` -1 selects the newest. `outputs` lists output names; empty means all. `parameters` is a flat
    JSON object. `flags` are Triton's request flags (1: sequence start, 2: sequence end). `timeout_us` is Triton's
    request timeout; 0 disables it. `stream`: the model may answer any number of times. `chain`: oldest
    link first, the caller last.
    """

    id: int
    model: str
    version: int
    inputs: list[TensorRef]
    outputs: list[str]
    parameters: str
    request_id: str
    correlation_id: Union[int, str]
    flags: int
    timeout_us: int
    stream: bool
    chain: list[Link]


class CallDropped(_Message, frozen=True):
    """worker → proxy: the caller no longer waits for this call; send no more answers."""

    id: int


class CallCancelled(_Message, frozen=True):
    """worker → proxy: ask the called model to stop. Its remaining answers are still sent."""

    id: int


class AnswerRead(_Message, frozen=True):
    """worker → proxy: the oldest unread answer of this call has been read."""

    id: int


class Answer(_Message, frozen=True):
    """proxy → worker: an answer to a call. If `error` is set, `code` is the name of Triton's error code.

    With code `MOVED`, the proxy did not execute the call; another proxy must be asked. `parameters` are the response
    parameters, a flat JSON object or "".
    """

    id: int
    outputs: list[TensorRef]
    final: bool
    error: Optional[str] = None
    code: str = ""
    parameters: str = ""


class Retiring(_Message, frozen=True):
    """proxy → worker: this proxy is retiring. Calls in flight are still answered."""


class Memory(_Message, frozen=True):
    """The descriptor in this packet refers to memory `number` of the sender."""

    number: int


class Forget(_Message, frozen=True):
    """The sender has released its memory `number`."""

    number: int


CallMessage = Union[Call, CallDropped, CallCancelled, AnswerRead, Answer, Retiring, Memory, Forget]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(CallMessage).decode


# ── the chain, as a request parameter (`CHAIN_PARAMETER`): a call that returns to its start is detected ──

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
