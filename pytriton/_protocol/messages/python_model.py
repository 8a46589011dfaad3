"""The messages from a Triton Python model in a worker to the dispatcher, and their answers."""

from __future__ import annotations

from typing import Union

import msgspec

from pytriton._protocol.messages.base import Message


class WorkerReadiness(Message, frozen=True):
    """The result of a model's own `is_ready` has changed; `why` is the reason for people."""

    worker: str
    ready: bool
    why: str = ""


class LoadOther(Message, frozen=True):
    """A model requests to load or reload another one (pb_utils.load_model). Payload frames: the `files`.

    `config` is JSON; empty selects the one in the model's folder. Answered with Done when the model is served.
    """

    worker: str
    name: str
    config: str = ""
    #: "file:VERSION/NAME", as in Triton's repository API; the complete content of the model's folder.
    files: list[str] = msgspec.field(default_factory=list)


class UnloadOther(Message, frozen=True):
    """A model requests to unload another one (pb_utils.unload_model). Answered with Done when unloading has begun.

    `dependents`: also unload the models that an ensemble consists of.
    """

    worker: str
    name: str
    dependents: bool = False


class AskReadiness(Message, frozen=True):
    """Ask whether a model is ready; without a version, whether any version is. Answered with Readiness."""

    name: str
    version: str = ""


class Readiness(Message, frozen=True):
    """Answer to AskReadiness."""

    ready: bool


#: All messages about Triton Python models, in either direction.
WithModel = Union[WorkerReadiness, LoadOther, UnloadOther, AskReadiness, Readiness]
