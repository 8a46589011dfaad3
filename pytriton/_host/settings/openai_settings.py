"""Settings of the OpenAI frontend."""

from __future__ import annotations

from typing import Annotated, Optional

from pytriton._host.settings import parsing as values
from pytriton._host.settings.option import PORT, SECONDS, Option
from pytriton._host.settings.place_settings import PlaceSettings


class OpenAISettings(PlaceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for models registered with `openai=`; see docs/how-to/openai.md."""

    # ── the OpenAI API ───────────────────────────────────────────────────────────────────────────
    openai_address: Annotated[
        str,
        Option(
            "Address to serve the OpenAI API on. 0.0.0.0 listens on every interface.", values.text()
        ),
    ] = "127.0.0.1"
    openai_port: Annotated[
        int,
        Option(
            "Port of the OpenAI API, opened with the first model that uses it. 0 picks a free port.",
            PORT,
        ),
    ] = 8003
    openai_keys_file: Annotated[
        Optional[str],
        Option(
            "TOML file with API keys and quotas of the OpenAI API, reloaded when it changes. Default: no key is "
            "required.",
            values.optional(values.path()),
        ),
    ] = None
    openai_cors_origin: Annotated[
        tuple[str, ...],
        Option(
            "Origin of web pages that may call the OpenAI API. May be repeated. `*` allows all.",
            values.several(values.origin()),
        ),
    ] = ()
    openai_remote_urls: Annotated[
        bool,
        Option(
            "Accept remote URLs in messages to the OpenAI API. The callable may fetch them; the daemon never does.",
            values.boolean(),
        ),
    ] = False
    openai_max_body_size: Annotated[
        int, Option("Maximum size of a request body of the OpenAI API, in bytes.", values.size())
    ] = 64 << 20
    openai_max_requests: Annotated[
        int,
        Option(
            "Maximum number of concurrent requests of the OpenAI API. Beyond it, requests fail with 429.",
            values.integer(1),
        ),
    ] = 1024
    openai_keepalive_s: Annotated[
        float,
        Option(
            "Idle time after which a stream of the OpenAI API sends a keep-alive comment, in seconds. 0 disables it.",
            SECONDS,
        ),
    ] = 15.0
    openai_timeout_s: Annotated[
        float,
        Option(
            "Maximum duration of a response of the OpenAI API, in seconds. 0 disables the limit.",
            SECONDS,
        ),
    ] = 600.0
