"""Messages between a worker and a proxy that calls other models on the worker's behalf.

They have a connection of their own, in addition to each lane: calls are independent of batches. Any thread of a
worker may call, many calls may be in flight at once, and answers arrive in any order::

    worker                                                   proxy
      │  Call(id, model, inputs → memory, offset, shape)        │
      │────────────────────────────────────────────────────────▶│ pb_utils.InferenceRequest(…).exec()
      │                Answer(id, outputs → memory, …, final)   │   one; or many, the last one final
      │◀────────────────────────────────────────────────────────│
      │  AnswerRead(id)     its memory may be used again        │
      │────────────────────────────────────────────────────────▶│
      │  CallCancelled(id)  its model may stop                  │
      │  CallDropped(id)    the caller no longer waits          │
      │────────────────────────────────────────────────────────▶│
      │                Retiring()   make no new calls here      │
      │◀────────────────────────────────────────────────────────│

The worker listens at `socket_path` (call_connection.py); the proxy connects before it sends a batch. The worker
accepts connections when it first makes a call, so a worker that makes no calls needs no thread for them. Inputs are in
memory of the worker (`Slots`), outputs where Triton put them. If one end dies, the other gets end-of-file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import msgspec

from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.parameters import CHAIN_PARAMETER

#: Error code of an answer: the worker must ask another proxy.
MOVED = "MOVED"
#: Variable in tritonserver's environment with the key that signs call chains, so that clients cannot forge them.
KEY_VARIABLE = "PYTRITON_CALLS_KEY"
_SEAL_CHARS = 32


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One link of a call chain: a model that waits for the answer to a call, and its blocked worker.

    `worker` is empty if that worker can process other batches during the call, so that it cannot cause a deadlock.
    """

    model: str
    worker: str


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base class of the call messages."""


class Call(_Message, frozen=True):
    """worker → proxy: call a model.

    `version` -1 selects the newest version. `outputs` lists output names; empty means all outputs. `parameters` is
    a flat JSON object. `flags` are Triton's request flags (1: sequence start, 2: sequence end). `timeout_us` is
    Triton's request timeout; 0 disables it. With `stream`, the model may answer any number of times. `chain` is the
    call chain, oldest link first, the caller last.
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
    """worker → proxy: the oldest outstanding answer to this call has been read."""

    id: int


class Answer(_Message, frozen=True):
    """proxy → worker: an answer to a call. If `error` is set, `code` is the name of Triton's error code.

    The code `MOVED` means that the proxy did not execute the call and another proxy must be asked. `parameters`
    are the response parameters, a flat JSON object or "".
    """

    id: int
    outputs: list[TensorRef]
    final: bool
    error: Optional[str] = None
    code: str = ""
    parameters: str = ""


class Retiring(_Message, frozen=True):
    """proxy → worker: this proxy accepts no new calls. Calls in flight are still answered."""


class Memory(_Message, frozen=True):
    """Announcement of the sender's memory segment `number`, whose descriptor is in the same packet."""

    number: int


class Forget(_Message, frozen=True):
    """Report that the sender has released its memory segment `number`."""

    number: int


CallMessage = Union[Call, CallDropped, CallCancelled, AnswerRead, Answer, Retiring, Memory, Forget]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(CallMessage).decode


# ── the call chain as a request parameter (`CHAIN_PARAMETER`), by which circular calls are detected ──

_decode_chain = msgspec.json.Decoder(list[Link]).decode


def encode_chain(chain: Sequence[Link], key: bytes) -> str:
    """Encode a call chain as the value of `CHAIN_PARAMETER`, signed with `key` so that clients cannot forge it."""
    encoded = msgspec.json.encode(chain)
    return _seal(encoded, key) + encoded.decode()


def decode_chain(parameters: str, key: bytes | None = None) -> list[Link]:
    """Return the call chain in a request's parameters (JSON); [] if there is none or it was not signed with `key`."""
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
