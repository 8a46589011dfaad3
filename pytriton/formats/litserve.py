"""LitServe's APIs: a class or an object in a file, called the way `LitServer` calls it.

Items of a stream are sent as server-sent events, and responses as JSON. Specs, callbacks, middleware and the arguments of
`LitServer` do not apply.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec

from pytriton._callables import call_signature
from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError
from pytriton.formats.loaded import FormatError
from pytriton.formats.tools import ToolModel, file_at, has_gpu
from pytriton.typed.bodies import Arguments
from pytriton.typed.markers import Batching
from pytriton.typed.multipart import Field, parse_form, parse_multipart
from pytriton.typed.problems import Problem
from pytriton.typed.signature import Parameter, Signature

_JSON = "application/json"
_CONTENT: dict[str, Any] = {
    _JSON: {"schema": {"type": "object"}},
    "multipart/form-data": {"schema": {"type": "object"}},
}


def open_model(location: str) -> ToolModel:
    """Import a file, and inspect the API that it defines.

    Args:
        location: FILE.py:NAME of a subclass of LitAPI, or of an object of one

    Raises:
        FormatError: there is none.
    """
    api = _api(location)
    streams, is_async = bool(api.stream), bool(api.enable_async)
    if (streams or is_async) and api.max_batch_size > 1:
        raise FormatError(
            f"{location}: batching is supported only for APIs that set neither stream nor enable_async; leave out max_batch_size"
        )
    if streams:
        kind = Kind.ASYNC_GENERATOR if is_async else Kind.GENERATOR
    else:
        kind = Kind.COROUTINE if is_async else Kind.FUNCTION
    request = _request_type(api)
    signature = Signature(
        name=type(api).__name__,
        parameters=(Parameter("request", request, required=True),),
        result=Any,
        kind=kind,
        batching=Batching(api.max_batch_size, api.batch_timeout)
        if api.max_batch_size > 1
        else None,
        doc=inspect.getdoc(type(api)) or "",
    )
    name = type(api).__name__
    runners = {
        Kind.FUNCTION: _batches if signature.batching else _responses,
        Kind.COROUTINE: _async_responses,
        Kind.GENERATOR: _items,
        Kind.ASYNC_GENERATOR: _async_items,
    }

    def load() -> Callable[..., Any]:
        device = "cuda:0" if has_gpu() else "cpu"
        api.device = device
        api.pre_setup()
        api.setup(device)
        return runners[kind](api)

    if request is Any:
        return ToolModel(name, signature, load, _decode, _CONTENT)
    return ToolModel(name, signature, load)


def _api(location: str) -> Any:
    """Create the API object that FILE.py:API names.

    Raises:
        FormatError: the file has none of that name.
    """
    file, _, name = location.rpartition(":")
    if not file:
        raise FormatError(f"{location}: must have the form FILE.py:API")
    path = file_at(file, "LitServe")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    found = getattr(importlib.import_module(path.stem), name, None)
    base = importlib.import_module("litserve").LitAPI
    if inspect.isclass(found) and issubclass(found, base):
        found = found()
    if not isinstance(found, base):
        raise FormatError(f"{path} has no LitAPI subclass or instance named {name!r}")
    return found


def _request_type(api: Any) -> Any:
    """Return the annotation of a request's body; `Any` for one that LitServe passes as a dict."""
    try:
        hint = typing.get_type_hints(type(api).decode_request).get("request", Any)
    except NameError:  # a type that is imported for type checkers only
        return Any
    plain = hint is dict or typing.get_origin(hint) is dict
    return Any if plain or getattr(hint, "__name__", "") == "Request" else hint


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────


def _step(method: Callable[..., Any], value: Any, context: Any) -> Any:
    """Call a method of the API, with the request's context if the method has a parameter for it."""
    wants = "context" in call_signature(method).parameters
    try:
        return method(value, context=context) if wants else method(value)
    except Exception as error:
        _reraise(error)
        raise


async def _async_step(method: Callable[..., Any], value: Any, context: Any) -> Any:
    found = _step(method, value, context)
    try:
        return await found if inspect.isawaitable(found) else found
    except Exception as error:
        _reraise(error)
        raise


def _reraise(error: Exception) -> None:
    """Convert a fastapi.HTTPException to our HTTPError and raise it. Ignore other exceptions."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and hasattr(error, "detail"):
        raise HTTPError(status, str(error.detail)) from error


def _responses(api: Any) -> Callable[..., Any]:
    def respond(request: Any) -> Any:
        context: dict[str, Any] = {}
        predicted = _step(api.predict, _step(api.decode_request, request, context), context)
        return _body(_step(api.encode_response, predicted, context))

    return respond


def _async_responses(api: Any) -> Callable[..., Any]:
    async def respond(request: Any) -> Any:
        context: dict[str, Any] = {}
        decoded = await _async_step(api.decode_request, request, context)
        predicted = await _async_step(api.predict, decoded, context)
        return _body(await _async_step(api.encode_response, predicted, context))

    return respond


def _items(api: Any) -> Callable[..., Any]:
    def respond(request: Any) -> Iterator[Any]:
        context: dict[str, Any] = {}
        predicted = _step(api.predict, _step(api.decode_request, request, context), context)
        try:
            yield from _step(api.encode_response, predicted, context)
        except Exception as error:
            _reraise(error)
            raise

    return respond


def _async_items(api: Any) -> Callable[..., Any]:
    async def respond(request: Any) -> AsyncIterator[Any]:
        context: dict[str, Any] = {}
        decoded = await _async_step(api.decode_request, request, context)
        predicted = _step(api.predict, decoded, context)
        encoded = _step(api.encode_response, predicted, context)
        try:
            async for item in encoded:
                yield item
        except Exception as error:
            _reraise(error)
            raise

    return respond


def _batches(api: Any) -> Callable[..., Any]:
    def respond(request: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(request)
        contexts: list[dict[str, Any]] = []
        valid: list[int] = []
        decoded = []
        for index, one in enumerate(request):
            context: dict[str, Any] = {}
            try:
                decoded.append(_step(api.decode_request, one, context))
            except HTTPError as error:
                results[index] = error
                continue
            contexts.append(context)
            valid.append(index)
        if valid:
            predicted = _step(api.predict, _step(api.batch, decoded, contexts), contexts)
            outputs = list(_step(api.unbatch, predicted, contexts))
            if len(outputs) != len(valid):
                raise ValueError(
                    f"predict and unbatch returned {len(outputs)} outputs for {len(valid)} requests"
                )
            for index, output, context in zip(valid, outputs, contexts):
                results[index] = _body(_step(api.encode_response, output, context))
        return results

    return respond


def _body(response: Any) -> Any:
    """Return the value to send as JSON. The body of a FastAPI response object is sent as is."""
    body = response if isinstance(response, bytes) else getattr(response, "body", None)
    return msgspec.Raw(body) if isinstance(body, bytes) else response


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def _decode(body: bytes, content_type: str) -> Arguments:
    """Return a request as LitServe passes it: the JSON, or the fields of a form, in which files look as they do in
    FastAPI.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        fields = parse_multipart(body, content_type)
    elif media_type == "application/x-www-form-urlencoded" and body[:1] not in (b"{", b"["):
        fields = parse_form(body)
    else:
        try:
            return Arguments([], {"request": json.loads(body)})
        except ValueError as error:
            raise Problem(400, f"The request body is not valid JSON: {error}") from None
    try:
        return Arguments([], {"request": {one.name: _value(one) for one in fields}})
    except ValueError as error:
        raise Problem(400, f"The form is invalid: {error}") from None


def _value(field: Field) -> Any:
    if field.filename is None:
        return field.text
    datastructures = importlib.import_module("starlette.datastructures")
    headers = datastructures.Headers({"content-type": field.content_type})
    return datastructures.UploadFile(
        io.BytesIO(field.data), size=len(field.data), filename=field.filename, headers=headers
    )
