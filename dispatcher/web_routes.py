"""The HTTP routes of typed functions, and their documentation pages. The frontend serves both next to Triton's API."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from pytriton._protocol import messages, routes
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.private_files import open_private
from pytriton.dispatcher.daemon_status import own_version
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.server.frontend import Frontend, ServerRefused, Unreached

__all__ = ["WebRoutes", "check_route", "openapi"]

_log = structlog.get_logger(__name__)
_OPENAPI, _DOCS = "/openapi.json", "/docs"
_PAGES = Path(__file__).parent / "pages"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_OPERATION_MEMBERS = frozenset(["summary", "description", "requestBody", "responses"])
#: Limits of the description of one route: bytes, levels of its JSON, and characters of a schema's name.
_MAX_DESCRIPTION, _MAX_DEPTH, _MAX_COMPONENT_NAME = 1 << 20, 64, 200
#: Bytes of all descriptions; the frontend takes pages of 64 MiB.
_MAX_DOCUMENT = 32 << 20
#: The page loads nothing from elsewhere, and runs only its own scripts.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Described:
    """A route, the size of its description, and its part of the OpenAPI document.

    That part is kept encoded, because thousands of routes are published at once.
    """

    def __init__(self, spec: messages.ModelSpec) -> None:
        assert spec.web is not None  # checked by the caller
        self.web = spec.web
        self.size = _size(spec.web)
        self.item = msgspec.Raw(msgspec.json.encode(_path_item(spec, {})))


class WebRoutes:
    """Publishes the routes of the registered models to the frontend whenever they change.

    Args:
        registry: the models
        frontend: serves the routes
        folder: where the OpenAPI document is stored
        origins: origins whose pages may call the routes; "*" for all origins
    """

    def __init__(
        self, registry: Registry, frontend: Frontend, folder: Path, origins: Sequence[str]
    ) -> None:
        self._registry = registry
        self._frontend = frontend
        self._folder = folder
        self._origins = list(origins)
        #: The routes that the frontend serves, by model, and whether it logs error responses.
        self._published: tuple[list[tuple[str, messages.WebRoute | None]], bool] = [], False
        #: By model.
        self._described: dict[str, _Described] = {}
        self._lock = asyncio.Lock()

    def check(self, spec: messages.ModelSpec) -> None:
        """Refuse a model if its route is invalid or belongs to another model.

        Raises:
            RemoteFailure: the route, or its description, is invalid, or the route is taken
        """
        if spec.web is None:
            return
        try:
            size = check_route(spec.web)
        except ValueError as error:
            raise RemoteFailure(ErrorKind.INVALID, f"model {spec.name}: {error}") from None
        others = [one for one in self._specs() if one.name != spec.name]
        for other in others:
            if other.web is not None and other.web.path == spec.web.path:
                raise RemoteFailure(
                    ErrorKind.EXISTS,
                    f"model {spec.name}: the route {spec.web.path} belongs to the model {other.name}; choose another "
                    "with route=",
                )
        if size + sum(self._describe(one).size for one in others) > _MAX_DOCUMENT:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"model {spec.name}: the route descriptions exceed {_MAX_DOCUMENT} bytes in total",
            )

    async def run(self) -> None:
        """Publish the routes after each change of the served models, for example when a model has been restored."""
        while True:
            changed = self._registry.changes.next
            await self.publish()
            await changed.wait()

    async def publish(self) -> None:
        """Wait until the frontend serves the current routes.

        A frontend that is starting or exiting is not an error: the next process gets the routes with its settings.
        """
        async with self._lock:
            specs = _unambiguous(self._specs())
            logs_errors = self._logs_errors()
            current = [(spec.name, spec.web) for spec in specs], logs_errors
            if current == self._published:
                return
            document: dict[str, Any] = {
                "routes": [_route(spec) for spec in specs],
                "origins": self._origins,
                "log_errors": logs_errors,
            }
            try:
                if specs:
                    document["pages"] = self._pages(specs)
                await self._frontend.set_routes(document)
            except (ServerRefused, Unreached, OSError) as error:
                _log.warning("routes not published", error=str(error))
            else:
                self._published = current

    def _specs(self) -> list[messages.ModelSpec]:
        """Return the typed models that are being served, have yet to be restored, or load on demand."""
        restoring, served = self._registry.restoring, self._registry.served
        specs = {
            spec.name: spec for spec in restoring.specs() if spec.web and spec.name not in served
        }
        specs.update((one.spec.name, one.spec) for one in self._typed())
        return list(specs.values())

    def _typed(self) -> Iterator[Registration]:
        """Yield the typed models that are served. There may be thousands of others, so look at each only once."""
        return (one for one in self._registry.served if one.spec.web is not None)

    def _logs_errors(self) -> bool:
        """Return whether the frontend logs error responses. It does for `serve`, which shows them.

        Most of these requests have not reached a worker, so workers cannot log them. `serve` starts models that have an
        access log and end with their client.
        """
        return any(one.spec.access_log and not one.kept for one in self._typed())

    def _describe(self, spec: messages.ModelSpec) -> _Described:
        found = self._described.get(spec.name)
        if found is None or found.web is not spec.web:
            found = self._described[spec.name] = _Described(spec)
        return found

    def _pages(self, specs: list[messages.ModelSpec]) -> list[dict[str, str]]:
        items = {spec.name: self._describe(spec).item for spec in specs}
        content = msgspec.json.encode(openapi(specs, items))
        self._described = {name: self._described[name] for name in items}
        path = self._folder / f"openapi-{hashlib.sha256(content).hexdigest()[:16]}.json"
        if not path.exists():
            for former in self._folder.glob("openapi-*.json"):
                former.unlink()
            with open(path, "wb", opener=open_private) as document:
                document.write(content)
        pages = [{"path": _OPENAPI, "type": "application/json", "file": str(path)}]
        for file in sorted(_PAGES.iterdir()):
            if file.suffix in _MEDIA_TYPES:
                where = _DOCS if file.name == "index.html" else f"{_DOCS}/{file.name}"
                pages.append(
                    {
                        "path": where,
                        "type": _MEDIA_TYPES[file.suffix],
                        "file": str(file),
                        "policy": _POLICY,
                    }
                )
        return pages


def openapi(
    specs: list[messages.ModelSpec], items: Mapping[str, msgspec.Raw] | None = None
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of typed models.

    If two models use the same name for different schemas, one is renamed to MODEL.SCHEMA.

    Args:
        specs: the models
        items: the encoded path items of their routes, by model
    """
    items = items or {}
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for spec in specs:
        if spec.web is None:
            continue
        renamed = routes.merge_schemas(spec.web.schemas, schemas, prefix=f"{spec.name}.")
        item = None if renamed else items.get(spec.name)
        paths[spec.web.path] = _path_item(spec, renamed) if item is None else item
    return {
        "openapi": "3.1.0",
        "info": {"title": "pytriton-daemon", "version": own_version()},
        "servers": [{"url": "."}],  # where the document is, also behind a path of a reverse proxy
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _path_item(spec: messages.ModelSpec, renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the operations of a route. They refer to schemas by their new names."""
    assert spec.web is not None  # checked by the caller
    operation = routes.with_references(spec.web.operation, renamed)
    operation = {"operationId": spec.name, "tags": ["functions"], **operation}
    if not spec.web.put:
        return {"post": operation}
    return {"post": operation, "put": {**operation, "operationId": f"{spec.name}.put"}}


def _size(web: messages.WebRoute) -> int:
    """Return the size of a route's description in bytes."""
    return len(msgspec.json.encode([web.operation, web.schemas]))


def check_route(web: messages.WebRoute) -> int:
    """Check that the frontend can serve a route, and that its description can be part of an OpenAPI document.

    Returns:
        the size of the description in bytes

    Raises:
        ValueError: the path or the media type is impossible; or the description is too large or too deep, refers to schemas
            that it lacks, or is not JSON
    """
    routes.check(web.path)
    routes.check_media_type(web.media_type)
    try:
        size = _size(web)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the route description is not valid JSON: {error}") from None
    if size > _MAX_DESCRIPTION:
        raise ValueError(f"the route description has {size} bytes, more than {_MAX_DESCRIPTION}")
    unknown = set(web.operation) - _OPERATION_MEMBERS
    if unknown:
        raise ValueError(f"the operation has the unknown member {min(unknown)!r:.100}")
    if not isinstance(web.operation.get("responses"), dict):
        raise ValueError("the operation has no responses")
    for name, schema in web.schemas.items():
        if len(name) > _MAX_COMPONENT_NAME or not routes.COMPONENT_NAME.fullmatch(name):
            raise ValueError(f"a schema cannot be named {name!r:.100}")
        if not isinstance(schema, dict):
            raise ValueError(f"the schema {name} is not a JSON object")
    _check_tree([web.operation, *web.schemas.values()], web.schemas)
    return size


def _check_tree(roots: list[Any], schemas: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in schemas}
    left = [(one, 0) for one in roots]
    while left:
        value, depth = left.pop()
        if depth > _MAX_DEPTH:
            raise ValueError(f"the route description has more than {_MAX_DEPTH} levels")
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and reference not in known:
                raise ValueError(
                    f"the route description refers to {reference!r:.100}, but does not define it"
                )
            if not all(isinstance(key, str) for key in value):
                raise ValueError("the route description has a key that is not a string")
            left += [(one, depth + 1) for one in value.values()]
        elif isinstance(value, (list, tuple)):
            left += [(one, depth + 1) for one in value]
        elif not isinstance(value, (str, int, float, type(None))) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(f"the route description contains {value!r:.100}, which is not JSON")


def _unambiguous(specs: list[messages.ModelSpec]) -> list[messages.ModelSpec]:
    """Return the models, sorted by name. If several models have the same route, return only the first of them."""
    by_path: dict[str, messages.ModelSpec] = {}
    for spec in specs:
        assert spec.web is not None  # checked by the caller
        first = by_path.setdefault(spec.web.path, spec)
        if first.name != spec.name:
            _log.warning(
                "route belongs to another model",
                model=spec.name,
                route=spec.web.path,
                other=first.name,
            )
        else:
            by_path[spec.web.path] = spec
    return sorted(by_path.values(), key=lambda one: one.name)


def _route(spec: messages.ModelSpec) -> dict[str, Any]:
    assert spec.web is not None  # checked by the caller
    return {
        "path": spec.web.path,
        "model": spec.name,
        "type": spec.web.media_type,
        "streams": spec.web.streams,
        "put": spec.web.put,
    }
