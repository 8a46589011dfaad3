"""Messages between the daemon and the OpenAI frontend, one per line on a private socket.

The daemon sends an `ApiState` as JSON at the start and after every change. The frontend sends `READY` once it is
serving. When the daemon sends `METRICS`, the frontend replies with a JSON list of `MetricData`.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages import OpenAICard

__all__ = ["METRICS", "READY", "ApiModel", "ApiSettings", "ApiState", "MetricData", "Upstream"]

READY, METRICS = b"ready\n", b"metrics\n"


class Upstream(msgspec.Struct, frozen=True):
    """tritonserver's HTTP endpoint, as used by the OpenAI frontend.

    Attributes:
        url: base URL; "" if tritonserver serves no HTTP
        socket: unix socket to connect to instead of the URL's host
        token: access token for the restricted endpoints
    """

    url: str
    socket: Optional[str] = None
    token: Optional[str] = None


class ApiModel(msgspec.Struct, frozen=True):
    """A model served through the API.

    Attributes:
        card: how the API shows and serves the model
        created: time of its registration, in seconds since the epoch
        ready: False while it is being restored
        most_texts: maximum number of texts per batch of embeddings
    """

    name: str
    card: OpenAICard
    created: int = 0
    ready: bool = True
    most_texts: int = 1


class ApiSettings(msgspec.Struct, frozen=True):
    """Settings of the OpenAI frontend, from the daemon's `openai_*` settings; times are in seconds.

    Attributes:
        keys_file: file with API keys; None if no key is required
        max_body_size: maximum size of a request body, in bytes
        max_requests: maximum number of concurrent requests
        keepalive_s: silence after which a stream sends a comment; 0 for never
        timeout_s: maximum duration of a response; 0 for no limit
        headers_s: time limit for the first headers of a new connection
        idle_s: time limit for the next request after a response
        body_s: time limit for a request body to arrive
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
    """Complete state of the OpenAI frontend. It serves no requests before it has received one."""

    settings: ApiSettings
    upstream: Upstream
    models: list[ApiModel] = []


class MetricData(msgspec.Struct, frozen=True):
    """A metric that the frontend reports to the daemon.

    Attributes:
        name: name without the suffix of its kind
        kind: "counter", "gauge" or "histogram"
        help: help text
        series: the labels of each series, and its values as (name suffix, bucket bound or "", value)
        since: time when counting began, in seconds since the epoch
    """

    name: str
    kind: str
    help: str
    series: list[tuple[list[tuple[str, str]], list[tuple[str, str, float]]]] = []
    since: float = 0.0
