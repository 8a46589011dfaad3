"""The base class of all control messages."""

from __future__ import annotations

import msgspec

#: The version of all messages. It must be raised when a field of a message, of a part of one (ModelSpec, ModelInfo) or of
#: a lane descriptor is added, removed or changes its type: `scripts/generate --raise-protocol` does that, also for the
#: compiled proxy.
PROTOCOL = 23


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base class of all control messages."""
