"""The messages from a Triton Python model in a worker to the dispatcher, and their answers."""

from __future__ import annotations

from typing import Union

import msgspec

from pytriton._protocol.messages.base import Message


class WorkerReadiness(Message, frozen=True):
    """The answer of a model's own `is_ready` has changed; `why` tells people the reason."""

    worker: str
    ready: bool
    why: str = ""


class LoadOther(Message, frozen=True):
    """A model wants another one loaded, or loaded anew (pb_utils.load_model). Payload frames: the `files`.

    `config` is JSON, empty for the one in the model's folder. Answered with Done when it is served.
    """

    worker: str
    name: str
    config: str = ""
    #: "file:VERSION/NAME", as Triton's repository API has it; all that the model's folder is to hold.
    files: list[str] = msgspec.field(default_factory=list)


class UnloadOther(Message, frozen=True):
    """A model wants another one unloaded (pb_utils.unload_model). Answered with Done when that has begun.

    `dependents`: with the models that an ensemble consists of.
    """

    worker: str
    name: str
    dependents: bool = False


class AskReadiness(Message, frozen=True):
    """Ask whether a model is ready, any version of it without one. Answered with Readiness."""

    name: str
    version: str = ""


class Readiness(Message, frozen=True):
    """Answer to AskReadiness."""

    ready: bool


#: Of a Triton Python model, in either direction.
WithModel = Union[WorkerReadiness, LoadOther, UnloadOther, AskReadiness, Readiness]
