"""The lines between the daemon and its OpenAI front, on a socket of theirs.

The daemon tells its `State` in JSON; each replaces the former one. The front says `READY` once it answers. The
daemon asks for `METRICS`, and the front tells a list of `Told`.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages import OpenAICard

__all__ = ["METRICS", "READY", "Answering", "Served", "State", "Told", "Upstream"]

READY, METRICS = b"ready\n", b"metrics\n"


class Upstream(msgspec.Struct, frozen=True):
    """The address of tritonserver's HTTP: `url`, or a unix socket. Its restricted endpoints ask for `token`.

    Without a `url` there is none.
    """

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


class Told(msgspec.Struct, frozen=True):
    """A metric that the front has counted.

    Attributes:
        name: without what its kind adds
        kind: "counter", "gauge" or "histogram"
        help: what it says
        series: labels, and values by what is behind the name, and the bound of a bucket ("" for none)
        since: when counting began (seconds since the epoch); 0 where a front of an earlier version does not say so
    """

    name: str
    kind: str
    help: str
    series: list[tuple[list[tuple[str, str]], list[tuple[str, str, float]]]] = []
    since: float = 0.0
