"""The OpenAPI operation of a typed function, with the JSON schemas of its types."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from pytriton._protocol.routes import merge_schemas, with_references
from pytriton.exceptions import PyTritonValidationError
from pytriton.typed.bodies import media_type_of
from pytriton.typed.markers import UploadFile
from pytriton.typed.signature import (
    Parameter,
    Signature,
    is_binary,
    is_class,
    is_image,
    parts_of,
    strip,
)
from pytriton.typed.values import array_spec, has_nonfinite, pydantic_adapter

__all__ = ["PROBLEM", "PROBLEM_SCHEMA", "operation_of"]

PROBLEM = "Problem"
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_REFERENCES = "#/components/schemas/{name}"
#: RFC 9457, with the extension member `errors`.
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": PROBLEM,
    "description": "Problem details (RFC 9457).",
    "type": "object",
    "properties": {
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "errors": {
            "description": "The invalid fields of the request.",
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"detail": {"type": "string"}, "pointer": {"type": "string"}},
                "required": ["detail", "pointer"],
            },
        },
    },
    "required": ["status", "title"],
}
_ERRORS = {
    "400": "The body is malformed",
    "413": "The body is too large",
    "415": "The body has an unsupported media type",
    "422": "The body is invalid",
    "500": "The function failed",
    "503": "The model is temporarily unavailable",
}


def operation_of(signature: Signature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the OpenAPI 3.1 operation of a typed function, and the named schemas that it refers to.

    Raises:
        PyTritonValidationError: a type cannot be represented in JSON
    """
    components: dict[str, Any] = {PROBLEM: PROBLEM_SCHEMA}
    summary, _, description = signature.doc.partition("\n")
    described = _described_arguments(signature.doc)
    content: dict[str, Any] = {}
    whole = signature.whole
    raw = signature.raw
    members = {
        one.name: _with_description(
            _schema(one.type, components, signature, f"parameter {one.name!r}"), one, described
        )
        for one in signature.parameters
    }
    if whole is not None:
        content["application/json"] = {"schema": members[whole.name]}
    else:
        body: dict[str, Any] = {
            "type": "object",
            "properties": members,
            "additionalProperties": False,
        }
        required = [one.name for one in signature.parameters if one.required]
        if required:
            body["required"] = required
        if raw is not None:
            content["image/*" if is_image(raw.type) else "application/octet-stream"] = {
                "schema": {}
            }
        content["application/json"] = {"schema": body}
        if any(_has_files(one) for one in signature.parameters):
            form = {**body, "properties": {name: _as_file(one) for name, one in members.items()}}
            content["multipart/form-data"] = {"schema": form}
    operation: dict[str, Any] = {
        "requestBody": {
            "required": any(one.required for one in signature.parameters),
            "content": content,
        },
        "responses": {
            "200": {
                "description": "What the function returns"
                if not signature.streams
                else "What the function yields, as server-sent events",
                "content": _result(signature, components),
            },
            **{status: _problem(text) for status, text in _ERRORS.items()},
        },
    }
    if summary:
        operation["summary"] = summary.rstrip(".")
    text = re.split(r"\n\s*(?:Args|Parameters|Returns|Raises|Example)s?:?\s*\n", description)[
        0
    ].strip()
    if text:
        operation["description"] = text
    return operation, components


def _result(signature: Signature, components: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(signature.result, components, signature, "the result", mode="serialization")
    media_type = media_type_of(signature.result)
    if signature.streams:
        # OpenAPI 3.1 has no schema for streams. Readers interpret this one as the schema of each event.
        data = {"type": "string", "contentMediaType": media_type, "contentSchema": schema}
        if media_type != "application/json":
            del data["contentSchema"]
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        return {"text/event-stream": {"schema": event}}
    return {media_type: {"schema": schema if media_type == "application/json" else {}}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": _REFERENCES.format(name=PROBLEM)}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _schema(
    annotation: Any,
    components: dict[str, Any],
    signature: Signature,
    what: str,
    *,
    mode: Literal["validation", "serialization"] = "validation",
) -> dict[str, Any]:
    if annotation is type(None):
        return {"type": "null"}
    try:
        for part in parts_of(annotation):
            _check_keys(part)
        adapter = pydantic_adapter(annotation)
        if adapter is not None:
            template = _REFERENCES.replace("{name}", "{model}")
            found = dict(adapter.json_schema(ref_template=template, mode=mode))
            named = found.pop("$defs", {})
            if is_class(annotation) and found.get("type") == "object":
                name = re.sub(r"[^\w.-]", "_", annotation.__name__, flags=re.ASCII)
                name += "-2" if name in named else ""
                named[name] = found
                found = {"$ref": _REFERENCES.format(name=name)}
            return _with_components(found, named, components)
        spec = array_spec(annotation)
        if spec is not None:
            return _array(spec)
        (schema,), named = msgspec.json.schema_components(
            [annotation], schema_hook=_custom_schema, ref_template=_REFERENCES
        )
    except PyTritonValidationError:
        raise
    except (
        Exception
    ) as error:  # each library raises its own exceptions for types that it does not support
        raise PyTritonValidationError(
            f"{signature.name}: {what} has the type {annotation!r}, which cannot be represented in JSON: {error}. Use plain types, "
            "dataclasses, TypedDict, msgspec.Struct, pydantic models, numpy arrays, PIL.Image.Image or UploadFile; or "
            "pass inputs= and outputs= to serve tensors."
        ) from error
    return _with_components(_with_pattern(dict(schema)), _with_pattern(named), components)


def _with_pattern(schema: Any) -> Any:
    """Add a pattern to every base64 string in a schema, because JSON Schema does not validate encodings. Return the result."""
    if isinstance(schema, list):
        return [_with_pattern(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _with_pattern(one) for name, one in schema.items()}
    return {**inner, "pattern": _BASE64} if inner.get("contentEncoding") == "base64" else inner


def _check_keys(kind: Any) -> None:
    """Raise if a type is a dict with keys that JSON does not allow. msgspec accepts such a type, but decodes only empty dicts."""
    if get_origin(kind) not in (dict, Mapping, MutableMapping):
        return
    key = strip(get_args(kind)[0])
    if (get_origin(key) or key) in (tuple, list, set, frozenset, dict):
        raise TypeError(f"the keys of {kind!r} are not strings or numbers")


def _with_components(
    schema: dict[str, Any], named: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    """Add to `components` the schemas that a schema refers to. Return the schema with its references updated.

    Types from two modules may have the same name, and a pydantic model may have different fields in results and requests.
    """
    renamed = merge_schemas(named, components)
    found: dict[str, Any] = with_references(schema, renamed)
    return found


def _custom_schema(kind: Any) -> dict[str, Any]:
    spec = array_spec(kind)
    if spec is not None:
        return _array(spec)
    if kind is UploadFile or is_image(kind):
        return {"type": "string", "contentEncoding": "base64"}
    raise TypeError(f"{kind!r} is not known")


def _array(spec: tuple[Any, tuple[int, ...] | None]) -> dict[str, Any]:
    dtype, shape = spec
    kinds = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}
    schema: dict[str, Any] = (
        {"type": kinds[dtype.kind]} if dtype is not None and dtype.kind in kinds else {}
    )
    for size in reversed(shape or ()):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    return schema if shape is not None else {"type": "array"}


def _with_description(
    schema: dict[str, Any], parameter: Parameter, described: dict[str, str]
) -> dict[str, Any]:
    if parameter.name in described:
        schema = {**schema, "description": described[parameter.name]}
    if not parameter.required:
        try:
            default = msgspec.to_builtins(parameter.default)
        except (TypeError, ValueError):  # not representable in JSON, so only the function knows it
            return schema
        if not has_nonfinite(default):
            schema = {**schema, "default": default}
    return schema


def _described_arguments(doc: str) -> dict[str, str]:
    """Return the description of each argument in a docstring: from "Args:" (Google) or ":param name:" (Sphinx)."""
    found = dict(re.findall(r"^:param (?:[^:]* )?(\w+): *(.+)$", doc, re.MULTILINE))
    section = re.search(r"^Arg(?:ument)?s:\s*\n((?:[ \t]+.*\n?|\s*\n)+)", doc, re.MULTILINE)
    if section is None:
        return found
    name, indent = "", None
    for line in section.group(1).splitlines():
        text = line.strip()
        begins = re.match(r"(\w+)(?: \([^)]*\))?: *(.*)", text)
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None and text else indent
        if begins and depth == indent:
            name = begins.group(1)
            found[name] = begins.group(2)
        elif name and text:
            found[name] += " " + text
    return found


def _has_files(parameter: Parameter) -> bool:
    bare = strip(parameter.type)
    return is_binary(bare) or any(is_binary(one) for one in get_args(bare))


def _as_file(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for sending a file in a form, as raw bytes instead of base64 (OpenAPI 3.1, 4.8.14.4)."""
    if "contentEncoding" in schema:
        rest = {name: schema[name] for name in schema if name not in ("contentEncoding", "pattern")}
        return {**rest, "contentMediaType": "application/octet-stream"}
    if "items" in schema and isinstance(schema["items"], dict):
        return {**schema, "items": _as_file(schema["items"])}
    return schema
