"""Parses `multipart/form-data` (RFC 7578) and `application/x-www-form-urlencoded` bodies."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from pytriton.typed.problems import Problem

__all__ = ["Field", "parse_form", "parse_multipart"]

#: Maximum number of fields in a form, and of bytes in the headers of one field.
_MAX_FIELDS = 1_000
_MAX_HEADERS = 16 << 10
#: RFC 2046, 5.1.1.
_MAX_BOUNDARY = 70

_CONTROLS = re.compile(r"[\0-\x1f\x7f]")
#: `; name=token` or `; name="quoted \" string"`.
_PARAMETER = re.compile(r';\s*([\w!#$%&\'*+.^`|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


class Field(NamedTuple):
    """One field of a form.

    Attributes:
        name: its name
        data: its content
        filename: the name of the file, without folders; None if the client sent none
        content_type: its media type; "" if the client sent none
    """

    name: str
    data: bytes
    filename: str | None
    content_type: str

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            ValueError: it is not UTF-8
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Expected text in UTF-8: {error.reason} at byte {error.start}"
            ) from None


def parse_form(body: bytes) -> list[Field]:
    """Return the fields of an `application/x-www-form-urlencoded` body.

    Raises:
        Problem: it is invalid, or has too many fields
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError as error:  # UnicodeDecodeError, too
        raise Problem(400, f"The body is not a valid form: {error}") from None
    return [Field(name, value.encode(), None, "") for name, value in pairs]


def parse_multipart(body: bytes, content_type: str) -> list[Field]:
    """Return the fields of a `multipart/form-data` body.

    Args:
        body: the body
        content_type: value of the request's Content-Type header, with the boundary

    Raises:
        Problem: it is invalid, or has too many fields
    """
    boundary = _parameters(content_type).get("boundary", "")
    if not 0 < len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
        raise Problem(400, f"Content-Type must name a boundary of 1 to {_MAX_BOUNDARY} characters")
    delimiter = b"--" + boundary.encode()
    position = 0 if body.startswith(delimiter) else _find(body, b"\r\n" + delimiter, 0) + 2
    fields: list[Field] = []
    while True:
        position += len(delimiter)
        end_of_line = body.find(b"\r\n", position)
        if body.startswith(b"--", position):
            return fields
        if end_of_line < 0 or body[position:end_of_line].strip(b" \t"):
            raise Problem(
                400, "The multipart body has a boundary that is not followed by a new line"
            )
        if len(fields) == _MAX_FIELDS:
            raise Problem(413, f"A form may have at most {_MAX_FIELDS} fields")
        end_of_headers = body.find(b"\r\n\r\n", end_of_line, end_of_line + _MAX_HEADERS)
        if end_of_headers < 0:
            raise Problem(
                400,
                "The multipart body has a field whose headers are unterminated or exceed 16 KiB",
            )
        start = end_of_headers + 4
        end = _find(body, b"\r\n" + delimiter, start - 2)
        fields.append(_field(body[end_of_line:end_of_headers], body[start : max(start, end)]))
        position = end + 2


def _find(body: bytes, wanted: bytes, start: int) -> int:
    found = body.find(wanted, start)
    if found < 0:
        raise Problem(400, "The multipart body ends before its closing boundary")
    return found


def _field(headers: bytes, data: bytes) -> Field:
    name: str | None = None
    filename: str | None = None
    content_type = ""
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        try:
            text = value.decode().strip()
        except UnicodeDecodeError:
            raise Problem(400, "The multipart body has a header that is not UTF-8") from None
        if key.strip().lower() == b"content-disposition":
            parameters = _parameters(text)
            name, filename = parameters.get("name"), parameters.get("filename")
        elif key.strip().lower() == b"content-type":
            content_type = text
    if name is None:
        raise Problem(
            400, "The multipart body has a field without a name in its Content-Disposition"
        )
    if filename is not None:
        filename = _CONTROLS.sub("", re.split(r"[/\\]", filename)[-1])
        filename = "" if filename in (".", "..") else filename
    return Field(name, data, filename, content_type)


def _parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, quoted, token in _PARAMETER.findall(header):
        # Browsers escape a quote as %22, other clients with a backslash.
        found.setdefault(name.lower(), token or quoted.replace('\\"', '"').replace("\\\\", "\\"))
    return found
