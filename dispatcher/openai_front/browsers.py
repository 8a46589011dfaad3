"""Pages in browsers: which may ask (CORS), and what others make a browser send is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web

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
    """Refuse what a browser sends for a page of another origin, which could not read the answer.

    It asks nobody before it sends that, as long as the page calls its JSON plain text: any page could have models
    work, and there may be no keys. Browsers say by Sec-Fetch-Site who asks, or by Origin alone where the connection
    is neither TLS nor to this machine itself; no page can change either.

    Raises:
        APIError: it is such a request
    """
    if request.method != "POST" or _may_ask(request, allowed):
        return
    if _is_of_other_site(request):
        raise APIError(
            "Pages of this origin may not ask; the setting openai_cors_origin says which may.", 403,
            code="origin_not_allowed",
        )  # fmt: skip


def _is_of_other_site(request: web.BaseRequest) -> bool:
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None or origin is None:
        return site not in (None, "none", "same-origin")
    return origin.partition("://")[2].lower() != request.headers.get("Host", "").lower()


def _may_ask(request: web.BaseRequest, allowed: Sequence[str]) -> bool:
    origin = request.headers.get("Origin")
    return origin is not None and ("*" in allowed or origin in allowed)
