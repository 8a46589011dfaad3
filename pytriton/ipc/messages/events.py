"""Events: what the dispatcher has decided, or has seen, as it tells clients."""

from __future__ import annotations

from typing import Optional, Union

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision of the daemon. Its kind is one of `dispatcher/events/kinds.py`.

    Attributes:
        serial: orders events, also those of one moment; grows over restarts of the daemon
        at: seconds since the epoch
        kind: the name of its kind
        model: which it is about; "": the daemon itself
        version: of the model
        instance: of the model; None: it is about the model as a whole
        worker: the worker's name, unique in one life of the daemon
        who: asked for it: a user and process, the name of a key, or a part of the daemon
        reason: in words
        numbers: by name; what they mean stands with the kind
    """

    serial: int
    at: float
    kind: str
    model: str = ""
    version: Optional[int] = None
    instance: Optional[int] = None
    worker: str = ""
    who: str = ""
    reason: str = ""
    numbers: dict[str, Union[int, float]] = {}
