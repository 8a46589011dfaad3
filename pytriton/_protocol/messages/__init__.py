"""Control messages: all messages that the dispatcher sends or receives, and their encoding.

    client.py       client ──▶ dispatcher ──▶ client
    metrics.py      the same; one snapshot of all metrics
    worker.py       worker ◀─▶ dispatcher; also for a registrant that runs workers in its threads
    proxy.py        proxy ◀─▶ dispatcher
    model_spec.py   the description of a model, which is part of several messages

This package exports all names of these modules. Each message is a frozen struct, and a member of the union at the end of
its module. Messages are encoded as MessagePack (msgspec), tagged by the name of their type. Users' bytes (pickled
callables) are sent in separate frames, which the dispatcher never deserializes. The format is private to one version of
this package: the first message on each connection contains `PROTOCOL`, which must match.
"""

from __future__ import annotations

from typing import Union

import msgspec

from pytriton._protocol.arguments import for_encoder
from pytriton._protocol.messages.base import PROTOCOL as PROTOCOL
from pytriton._protocol.messages.base import Message as Message
from pytriton._protocol.messages.client import *  # noqa: F403
from pytriton._protocol.messages.client import FromClient, ToClient
from pytriton._protocol.messages.metrics import *  # noqa: F403
from pytriton._protocol.messages.model_spec import *  # noqa: F403
from pytriton._protocol.messages.proxy import *  # noqa: F403
from pytriton._protocol.messages.proxy import WithProxy
from pytriton._protocol.messages.worker import *  # noqa: F403
from pytriton._protocol.messages.worker import WithWorker

AnyMessage = Union[FromClient, ToClient, WithWorker, WithProxy]

#: Encodes numpy scalars as numbers: users pass them, and no field has a type for them.
_encoder = msgspec.msgpack.Encoder(enc_hook=for_encoder)
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class MalformedMessage(ValueError):
    """The bytes are not a valid message of this protocol."""


def sendable(text: str) -> str:
    """Escape characters that a message cannot carry because UTF-8 has no encoding for them, as in some file names."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def encode(message: AnyMessage) -> bytes:
    """Encode a control message as MessagePack."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Decode a control message.

    Raises:
        MalformedMessage: the data is not exactly one valid message.
    """
    try:
        message: AnyMessage = _decoder.decode(data)
    # ValidationError is a DecodeError; for invalid UTF-8, msgspec raises Python's own error.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from error
    return message
