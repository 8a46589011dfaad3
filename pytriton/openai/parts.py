"""The parts of a message: texts, images, audio and files. Data URLs are decoded. Nothing is downloaded."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytriton.openai.errors import APIError

__all__ = ["Part", "part_of", "remote_urls"]

_DATA_URL = re.compile(
    r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE
)
_SUBTYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.+-]{0,63}")
#: Fields with the text of a text part; names with "input" or "output" belong to `/v1/responses`.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SCHEME = re.compile(r"[a-z][a-z\d+.-]{0,63}", re.IGNORECASE)
_SLASH = re.compile(r"\s*[/\\]")
_CONTROLS = "".join(map(chr, range(32)))
#: Informational fields, such as the sources of an earlier response, whose URLs are not downloaded.
_NO_URLS = frozenset((*_TEXTS.values(), "title", "name", "filename", "annotations", "logprobs"))
#: Characters of a percent-encoded text that are decoded at a time.
_PIECE = 1 << 16


@dataclass(frozen=True)
class Part:
    """One part of a message's content.

    Attributes:
        type: type of the part as sent, such as "text", "image_url", "input_audio" or "file"
        text: the text of a text part
        data: contents of an image, sound or file that is included in the request; otherwise None
        media_type: media type of the data, such as "image/png"
        url: remote URL, which the callable may download. The daemon rejects requests with remote URLs unless
            `openai_remote_urls` is enabled
        raw: the part as sent
    """

    type: str
    text: str = ""
    data: bytes | None = field(default=None, repr=False)
    media_type: str = ""
    url: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def part_of(raw: Any, place: str) -> Part:
    """Parse a part of a message and decode its data.

    Raises:
        APIError: the part is invalid; the message names its location, `place`
    """
    if isinstance(raw, str):
        return Part("text", text=raw)
    kind = raw.get("type")
    if not isinstance(kind, str):
        raise APIError(
            f"'{place}' must have a 'type'.", param=f"{place}.type", code="invalid_value"
        )
    if kind in _TEXTS:
        text = raw.get(_TEXTS[kind])
        if not isinstance(text, str):
            raise APIError(
                f"'{place}.{_TEXTS[kind]}' must be a string.", param=place, code="invalid_value"
            )
        return Part(kind, text=text, raw=raw)
    sound = raw.get("input_audio")
    if isinstance(sound, Mapping) and isinstance(sound.get("data"), str):
        form = sound.get("format") or "wav"
        if not isinstance(form, str) or not _SUBTYPE.fullmatch(form):
            raise APIError(
                f"'{place}.input_audio.format' must be a format such as 'wav' or 'mp3'.",
                param=f"{place}.input_audio.format",
                code="invalid_value",
            )
        data = _decoded(sound["data"], place)
        return Part(kind, data=data, media_type=f"audio/{form}", raw=raw)
    for name, url in _urls(raw):
        if url[:5].lower() == "data:":
            data, media_type = _of_data_url(url, place)
            return Part(kind, data=data, media_type=media_type, raw=raw)
        if name == "file_data" and ":" not in url:  # not a URL, but plain base64
            return Part(kind, data=_decoded(url, place), raw=raw)
        return Part(kind, url=url, raw=raw)
    return Part(kind, raw=raw)


def remote_urls(raw: Any) -> Iterator[str]:
    """Return the remote URLs in a part.

    This includes everything that a callable, or a server behind it, could interpret as a URL, at any depth, except
    URLs in texts.
    """
    if not isinstance(raw, Mapping):
        return
    for name, url in _urls(raw):
        bare = name == "file_data" and ":" not in url
        if url[:5].lower() != "data:" and not bare:
            yield url
    left: list[Any] = [raw]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += [one for name, one in value.items() if name not in _NO_URLS and _may_have(one)]
        elif isinstance(value, list):
            left += filter(_may_have, value)
        elif _is_remote(value):
            yield value


def _may_have(value: Any) -> bool:
    return ":" in value if isinstance(value, str) else isinstance(value, (Mapping, list))


def _is_remote(text: str) -> bool:
    """Return whether a string is a remote URL. Whitespace is ignored, because HTTP clients ignore it in the scheme."""
    end = text.find(":")
    scheme = "".join(text[:end].split()).strip(_CONTROLS)
    if scheme.lower() == "data" or not _SCHEME.fullmatch(scheme):
        return False
    return _SLASH.match(text, end + 1) is not None


def _urls(part: Mapping[str, Any], *, whole: bool = True) -> Iterator[tuple[str, str]]:
    """Return pairs of field name and URL.

    The value of `image_url` and similar fields is a URL or an object with a URL. Files contain data URLs, too.
    """
    for name, value in part.items():
        if whole and isinstance(value, Mapping):
            yield from _urls(value, whole=False)
        elif isinstance(value, str) and (name.endswith("url") or name == "file_data"):
            yield name, value


def _of_data_url(url: str, place: str) -> tuple[bytes, str]:
    head = _DATA_URL.match(url)
    if head is None:
        raise APIError(
            f"'{place}' contains an invalid data URL: it must begin with a prefix such as 'data:image/png;base64,'.",
            param=place,
            code="invalid_data_url",
        )
    rest = url[head.end() :]
    media_type = (head["type"] or "text/plain").lower()
    if head["base64"]:
        return _decoded(rest, place), media_type
    return _unquoted(rest), media_type


def _unquoted(text: str) -> bytes:
    """Decode a percent-encoded text to bytes, piece by piece: urllib would need forty times the memory."""
    from urllib.parse import unquote_to_bytes

    found = bytearray()
    start = 0
    while start < len(text):
        end = start + _PIECE
        escape = text.rfind("%", end - 2, end)  # an escape that may continue after the end
        end = end if escape < 0 else escape
        found += unquote_to_bytes(text[start:end])
        start = end
    return bytes(found)


def _decoded(text: str, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise APIError(
            f"'{place}' contains data that is not valid base64: {error}.",
            param=place,
            code="invalid_base64",
        ) from None
