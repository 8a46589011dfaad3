"""Settings: the OpenAI front."""

from __future__ import annotations

from typing import Annotated, Optional

from pytriton._host.settings import parsing as values
from pytriton._host.settings.option import PORT, SECONDS, Option
from pytriton._host.settings.place_settings import PlaceSettings


class OpenAISettings(PlaceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of models that are registered with `openai=`; docs/how-to/openai.md."""

    # ── the OpenAI API ───────────────────────────────────────────────────────────────────────────
    openai_address: Annotated[
        str,
        Option(
            "Address that the OpenAI API is served on; 0.0.0.0 is every interface.", values.text()
        ),
    ] = "127.0.0.1"
    openai_port: Annotated[
        int,
        Option("Port of the OpenAI API, once a model asks for it; 0 takes a free one.", PORT),
    ] = 8003
    openai_keys_file: Annotated[
        Optional[str],
        Option(
            "File (TOML) of the API keys that clients have to show, with their quotas; it is read again when it "
            "changes. Default: none is needed.",
            values.optional(values.path()),
        ),
    ] = None
    openai_cors_origin: Annotated[
        tuple[str, ...],
        Option(
            "Origin of web pages that may ask, such as https://chat.example; may be given several times. `*` is all.",
            values.several(values.origin()),
        ),
    ] = ()
    openai_remote_urls: Annotated[
        bool,
        Option(
            "Hand remote URLs in messages on to the callable, which may fetch them; else such requests are refused. "
            "The daemon itself fetches nothing.",
            values.boolean(),
        ),
    ] = False
    openai_max_body_size: Annotated[
        int, Option("The most bytes of a request's body.", values.size())
    ] = 64 << 20
    openai_max_requests: Annotated[
        int,
        Option(
            "Requests under way at the same time; those beyond are answered with 429.",
            values.integer(1),
        ),
    ] = 1024
    openai_keepalive_s: Annotated[
        float,
        Option("Seconds of silence after which a stream gets a comment; 0: never.", SECONDS),
    ] = 15.0
    openai_timeout_s: Annotated[
        float, Option("Seconds that an answer may take; 0: no limit.", SECONDS)
    ] = 600.0
