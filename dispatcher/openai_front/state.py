"""The state of the OpenAI front, told by the daemon: lines of JSON over a socket, each replaces the former one."""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton.ipc.messages import OpenAICard

__all__ = ["Answering", "Served", "State", "Upstream"]


class Upstream(msgspec.Struct, frozen=True):
    """The address of tritonserver's HTTP: `url`, or a unix socket. Its restricted endpoints ask for `token`."""

    url: str
    socket: Optional[str] = None
    token: Optional[str] = None


class Served(msgspec.Struct, frozen=True):
    """A model behind the API. `most_texts`: of embeddings, what fits into one request."""

    name: str
    card: OpenAICard
    created: int = 0
    ready: bool = True
    most_texts: int = 1


class Answering(msgspec.Struct, frozen=True):
    """How the front answers: the daemon's settings `openai_*`, see settings/openai_settings.py.

    The last three are the same for every daemon: seconds that a new connection has for its first headers, one that
    was answered for the next, and a body to come.
    """

    keys_file: Optional[str] = None
    cors_origins: tuple[str, ...] = ()
    remote_urls: bool = False
    max_body_size: int = 64 << 20
    max_requests: int = 1024
    keepalive_s: float = 15.0
    timeout_s: float = 600.0
    headers_s: float = 15.0
    idle_s: float = 75.0
    body_s: float = 60.0


class State(msgspec.Struct, frozen=True):
    """All of it. The first line has to come before the front answers anybody."""

    answering: Answering
    upstream: Upstream
    models: list[Served] = []
