"""Access of pages in browsers: adds CORS headers for permitted origins and refuses requests of other sites."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web

from pytriton.dispatcher.http_server.browsers import Foreign, foreign_request
from pytriton.openai.errors import APIError

__all__ = ["headers_for_pages", "refuse_other_sites"]

#: Headers that a page may send, if the browser's preflight request lists none.
_ALLOWED = (
    "authorization, content-type, x-request-id, openai-organization, openai-project, openai-beta"
)
#: The header names that a preflight request may list: libraries use their own (OpenAI's has ten x-stainless ones).
_NAMES = re.compile(r"[a-zA-Z0-9_-]{1,64}(?:[, ]{1,4}[a-zA-Z0-9_-]{1,64}){0,63}")
#: Response headers that a page may read.
_SHOWN = "x-request-id, retry-after, " + ", ".join(
    f"x-ratelimit-{what}-{of}"
    for of in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
#: Seconds for which a browser may cache a preflight response.
_REMEMBERED_S = 600


def headers_for_pages(request: web.BaseRequest, allowed: Sequence[str]) -> dict[str, str]:
    """Return the response headers that permit a page to read it; `allowed` are the permitted origins."""
    if not allowed:
        return {}
    headers = {
        "Vary": "Origin"
    }  # on all responses, so that caches do not serve them to another origin
    if _may_ask(request, allowed):
        headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
        headers["Access-Control-Expose-Headers"] = _SHOWN
        if request.method == "OPTIONS":  # a preflight request
            wanted = request.headers.get("Access-Control-Request-Headers", "")
            headers["Access-Control-Allow-Headers"] = (
                wanted if _NAMES.fullmatch(wanted) else _ALLOWED
            )
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers["Access-Control-Max-Age"] = str(_REMEMBERED_S)
    return headers


def refuse_other_sites(request: web.BaseRequest, allowed: Sequence[str]) -> None:
    """Refuse a browser's request on behalf of a page whose origin is not permitted.

    A browser sends a page's JSON without a preflight request if the page declares it as plain text, and keys may be
    disabled: then any page could run models.

    Raises:
        APIError: it is such a request
    """
    if _may_ask(request, allowed):
        return
    local_address = request.get_extra_info("sockname")
    foreign = foreign_request(request.method, request.headers, local_address)
    if foreign is Foreign.OTHER_SITE:
        raise APIError(
            "Pages of this origin are not permitted; add it to the setting openai_cors_origin.", 403,
            code="origin_not_allowed",
        )  # fmt: skip
    if foreign is not None and "*" not in allowed:
        text = foreign.value
        raise APIError(f"{text[0].upper()}{text[1:]}.", 403, code="host_not_allowed")


def _may_ask(request: web.BaseRequest, allowed: Sequence[str]) -> bool:
    origin = request.headers.get("Origin")
    return origin is not None and ("*" in allowed or origin in allowed)
