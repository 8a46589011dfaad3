"""The messages between the daemon and its OpenAI frontend, one per line on a private socket.

The daemon sends its `ApiState` as JSON; each replaces the previous one. The frontend sends `READY` once it serves. The daemon
sends `METRICS`, and the frontend answers with a list of `MetricData`.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages import OpenAICard

__all__ = ["METRICS", "READY", "ApiModel", "ApiSettings", "ApiState", "MetricData", "Upstream"]

READY, METRICS = b"ready\n", b"metrics\n"


class Upstream(msgspec.Struct, frozen=True):
    """tritonserver's HTTP endpoint: a `url` or a unix socket, and the `token` for its restricted endpoints.

    An empty `url` means that it has none.
    """

    url: str
    socket: Optional[str] = None
    token: Optional[str] = None


class ApiModel(msgspec.Struct, frozen=True):
    """A model behind the API. `most_texts` is the maximum number of texts per embedding request."""

    name: str
    card: OpenAICard
    created: int = 0
    ready: bool = True
    most_texts: int = 1


class ApiSettings(msgspec.Struct, frozen=True):
    """Settings of the frontend: the daemon's `openai_*`, see pytriton/_host/settings/declarations.py.

    The last three are fixed: seconds for the first headers of a new connection, for the next request after an answer,
    and for a body to arrive.
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


class ApiState(msgspec.Struct, frozen=True):
    """The complete state. It must arrive before the frontend serves requests."""

    answering: ApiSettings
    upstream: Upstream
    models: list[ApiModel] = []


class MetricData(msgspec.Struct, frozen=True):
    """A metric counted by the frontend.

    Attributes:
        name: name without the suffix of its kind
        kind: "counter", "gauge" or "histogram"
        help: help text
        series: labels, and values by name suffix and bucket bound ("" if none)
        since: time when counting began, in seconds since the epoch
    """

    name: str
    kind: str
    help: str
    series: list[tuple[list[tuple[str, str]], list[tuple[str, str, float]]]] = []
    since: float = 0.0
