"""Rules for the HTTP routes of typed functions: their paths, media types and JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "COMPONENT_NAME",
    "RESERVED",
    "check",
    "check_media_type",
    "merge_schemas",
    "with_references",
]

#: First segments of paths that the frontend or another server of the daemon uses.
RESERVED = frozenset(
    [
        "admin",
        "docs",
        "health",
        "healthz",
        "invocations",
        "livez",
        "metrics",
        "models",
        "openapi.json",
        "ping",
        "readyz",
        "v1",
        "v2",
    ]
)
_MAX_PATH = 400
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+")
#: Names that OpenAPI 3.1 permits for schemas.
COMPONENT_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_REFERENCES = "#/components/schemas/"
#: The same limit is in proxy_backend/frontend/http/route_table.h.
_MAX_MEDIA_TYPE = 127
_TOKEN = r"[\w!#$%&'*+.^`|~-]+"
_MEDIA_TYPE = re.compile(
    rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[\w !#-\[\]-~]*"))*', re.ASCII
)


def check(path: str) -> None:
    """Check that a path can be used for a route.

    Raises:
        ValueError: it is invalid or reserved
        TypeError: it is not a string
    """
    if not isinstance(path, str):
        raise TypeError(f"a route is a string such as '/predict', got {path!r:.100}")
    first, *segments = path.split("/")
    if first or not segments or len(path) > _MAX_PATH or not all(map(_SEGMENT.fullmatch, segments)):
        raise ValueError(
            "a route is a slash followed by letters, digits, dots, dashes and underscores, such as /predict or "
            f"/text/labels, got {path!r:.100}"
        )
    if segments[0] in RESERVED or {".", ".."} & {*segments}:
        raise ValueError(f"the route {path} is reserved; choose another with route=")
    if len(segments) > 10:
        raise ValueError(f"the route {path} has more than 10 segments")


def check_media_type(value: str) -> None:
    """Check the Content-Type of a route's responses.

    Raises:
        ValueError: it cannot be one; the text says why
    """
    if (
        not isinstance(value, str)
        or len(value) > _MAX_MEDIA_TYPE
        or not _MEDIA_TYPE.fullmatch(value)
    ):
        raise ValueError(
            f"a media type is text such as 'image/png' or 'text/plain; charset=utf-8' of at most {_MAX_MEDIA_TYPE} "
            f"characters, got {value!r:.100}"
        )


def merge_schemas(named: dict[str, Any], into: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Add named JSON schemas to others. A schema gets a new name if a different schema already has its name.

    Args:
        named: the schemas, by name
        into: receives them
        prefix: what new names begin with

    Returns:
        The new names, by the former names.
    """
    changed = [name for name, one in named.items() if into.get(name, one) != one]
    users: dict[str, list[str]] = {}
    for name, one in named.items() if changed else ():
        for other in _references_in(one):
            users.setdefault(other, []).append(name)
    renamed: dict[str, str] = {}
    used: set[str] = set()
    while changed:
        name = changed.pop()
        if name in renamed or name not in into:
            continue
        new, number = f"{prefix}{name}", 1
        while new in named or new in into or new in used:
            number += 1
            new = f"{prefix}{name}-{number}"
        used.add(new)
        renamed[name] = new
        changed += users.get(name, ())  # they refer to another schema now, and so differ themselves
    for name, one in named.items():
        into[renamed.get(name, name)] = with_references(one, renamed)
    return renamed


def with_references(value: Any, renamed: Mapping[str, str]) -> Any:
    """Return a copy of a JSON schema, or of a document with several, in which references use the schemas' new names.

    Args:
        value: the schema
        renamed: new names of schemas, by the former ones
    """
    if not renamed:
        return value
    if isinstance(value, dict):
        return {key: with_references(one, renamed) for key, one in value.items()}
    if isinstance(value, list):
        return [with_references(one, renamed) for one in value]
    if isinstance(value, str) and value.startswith(_REFERENCES):  # of $ref, or a discriminator's
        name = value[len(_REFERENCES) :]
        return _REFERENCES + renamed.get(name, name)
    return value


def _references_in(schema: Any) -> set[str]:
    """Return the names of the schemas that a schema refers to."""
    found: set[str] = set()
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and value.startswith(_REFERENCES):
            found.add(value[len(_REFERENCES) :])
    return found
