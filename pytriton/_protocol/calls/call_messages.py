"""Calls to other models: the connection on which a worker asks a proxy to make them, and what travels on it.

Each proxy of a worker has such a connection to it, beside its lane: a call is no part of a batch. Any
thread of a worker may call, many calls may be under way at once, and answers come in any order::

    worker                                                   proxy
      │  Call(id, model, inputs → memory, offset, shape)        │
      │────────────────────────────────────────────────────────▶│ pb_utils.InferenceRequest(…).exec()
      │                Answer(id, outputs → memory, …, final)   │   one; or many, the last one final
      │◀────────────────────────────────────────────────────────│
      │  AnswerRead(id)     its memory may be used again        │
      │────────────────────────────────────────────────────────▶│
      │  CallCancelled(id)  its model may stop                  │
      │  CallDropped(id)    nobody waits for it any longer      │
      │────────────────────────────────────────────────────────▶│
      │                Retiring()   make no new calls here      │
      │◀────────────────────────────────────────────────────────│

The worker listens at `socket_path` (call_connection.py); the proxy connects there before it sends a batch. The worker
takes connections when it makes a call: one that never does has no thread for it. Inputs lie in memory of the worker
(call_slots.py), outputs where Triton put them. Either end's death is the other's end-of-file.
"""

from __future__ import annotations

from typing import Optional, Union

import msgspec

from pytriton._protocol.calls.call_chain import Link
from pytriton._protocol.lanes.lane_messages import TensorRef

#: The code of an answer that says: ask another proxy.
MOVED = "MOVED"


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the messages of calls."""


class Call(_Message, frozen=True):
    """worker → proxy: call a model.

    `version` -1: the newest. `outputs`: names; none: all. `parameters` is JSON of a flat object.
    `flags` are Triton's request flags (1: a sequence starts, 2: it ends). `timeout_us`: Triton's
    request timeout, 0: none. `stream`: the model may answer any number of times. `chain`: oldest
    first, the caller last.
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
    """worker → proxy: nobody waits for this call any longer; it gets no more answers."""

    id: int


class CallCancelled(_Message, frozen=True):
    """worker → proxy: ask the called model to stop; what it still answers is sent as before."""

    id: int


class AnswerRead(_Message, frozen=True):
    """worker → proxy: the oldest answer of this call that was not yet read has been read."""

    id: int


class Answer(_Message, frozen=True):
    """proxy → worker: an answer to a call. With an `error`, `code` is the name of Triton's code for it.

    The code `MOVED`: nothing was done about the call, another proxy has to be asked. `parameters` are those of
    the response, JSON of a flat object, or "".
    """

    id: int
    outputs: list[TensorRef]
    final: bool
    error: Optional[str] = None
    code: str = ""
    parameters: str = ""


class Retiring(_Message, frozen=True):
    """proxy → worker: this proxy goes elsewhere; what is under way is still answered."""


class Memory(_Message, frozen=True):
    """The descriptor in this packet is memory `number` of the sender from now on."""

    number: int


class Forget(_Message, frozen=True):
    """The sender has given back its memory `number`."""

    number: int


CallMessage = Union[Call, CallDropped, CallCancelled, AnswerRead, Answer, Retiring, Memory, Forget]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(CallMessage).decode
