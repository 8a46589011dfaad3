"""The base class of all control messages."""

from __future__ import annotations

import msgspec

#: Raise it when a message, a part of one (ModelSpec, ModelInfo) or a lane descriptor changes its shape: a field is added
#: or removed, or gets another type. `scripts/generate --raise-protocol` does both, also for the compiled proxy.
PROTOCOL = 18


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base class of all control messages."""
