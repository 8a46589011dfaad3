"""Pages in browsers: which may ask (CORS), and what others make a browser send is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web

from pytriton.dispatcher.http_server.browsers import Foreign, foreign_request
from pytriton.openai.errors import APIError

__all__ = ["headers_for_pages", "refuse_other_sites"]

#: Headers that a page may send, where its browser does not ask for any.
_ALLOWED = (
    "authorization, content-type, x-request-id, openai-organization, openai-project, openai-beta"
)
#: The names that it does ask for: libraries have headers of their own (OpenAI's has ten that begin with x-stainless).
_NAMES = re.compile(r"[a-zA-Z0-9_-]{1,64}(?:[, ]{1,4}[a-zA-Z0-9_-]{1,64}){0,63}")
#: Headers of answers that a page may read.
_SHOWN = "x-request-id, retry-after, " + ", ".join(
    f"x-ratelimit-{what}-{of}"
    for of in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
#: Seconds for which a browser may remember what it was told.
_REMEMBERED_S = 600


def headers_for_pages(request: web.BaseRequest, allowed: Sequence[str]) -> dict[str, str]:
    """Return the headers of an answer that say whether a page may read it; `allowed`: the origins of those that may."""
    if not allowed:
        return {}
    headers = {"Vary": "Origin"}  # also of others' answers: caches may not give these to a page
    if _may_ask(request, allowed):
        headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
        headers["Access-Control-Expose-Headers"] = _SHOWN
        if request.method == "OPTIONS":  # a browser asks before it sends the request
            wanted = request.headers.get("Access-Control-Request-Headers", "")
            headers["Access-Control-Allow-Headers"] = (
                wanted if _NAMES.fullmatch(wanted) else _ALLOWED
            )
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers["Access-Control-Max-Age"] = str(_REMEMBERED_S)
    return headers


def refuse_other_sites(request: web.BaseRequest, allowed: Sequence[str]) -> None:
    """Refuse what a browser sends for a page of another site that is not allowed to ask.

    A browser sends a page's JSON without asking first if the page calls it plain text, and there may be no keys: any
    page could have models work.

    Raises:
        APIError: it is such a request
    """
    if _may_ask(request, allowed):
        return
    local_address = request.get_extra_info("sockname")
    foreign = foreign_request(request.method, request.headers, local_address)
    if foreign is Foreign.OTHER_SITE:
        raise APIError(
            "Pages of this origin may not ask; the setting openai_cors_origin says which may.", 403,
            code="origin_not_allowed",
        )  # fmt: skip
    if foreign is not None and "*" not in allowed:
        text = foreign.value
        raise APIError(f"{text[0].upper()}{text[1:]}.", 403, code="host_not_allowed")


def _may_ask(request: web.BaseRequest, allowed: Sequence[str]) -> bool:
    origin = request.headers.get("Origin")
    return origin is not None and ("*" in allowed or origin in allowed)
