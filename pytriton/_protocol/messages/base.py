"""The base class of all control messages."""

from __future__ import annotations

import msgspec

#: Raised whenever a message or a lane descriptor changes its shape: fields that come, go or have another type, also in
#: what messages are made of (ModelSpec, ModelInfo). `scripts/generate` then tells the compiled proxy.
PROTOCOL = 18


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base class of all control messages."""
