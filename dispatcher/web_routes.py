"""The HTTP routes of typed functions, and the pages that describe them: what the frontend serves beside Triton's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol import messages, routes
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.daemon_status import own_version
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.server.frontend import Frontend, ServerRefused, Unreached

__all__ = ["WebRoutes", "openapi"]

_log = structlog.get_logger(__name__)
_OPENAPI, _DOCS = "/openapi.json", "/docs"
_PAGES = Path(__file__).parent / "pages"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
#: The page loads nothing from elsewhere, and runs only its own scripts.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class WebRoutes:
    """Publishes the routes of the registered models to the frontend whenever they change.

    Args:
        registry: the models
        frontend: serves the routes
        folder: for the OpenAPI document
        origins: origins whose pages may call the routes; "*" for all
    """

    def __init__(
        self, registry: Registry, frontend: Frontend, folder: Path, origins: Sequence[str]
    ) -> None:
        self._registry = registry
        self._frontend = frontend
        self._folder = folder
        self._origins = list(origins)
        self._published: dict[str, Any] = {"routes": [], "origins": self._origins}
        self._lock = asyncio.Lock()

    def check(self, spec: messages.ModelSpec) -> None:
        """Refuse a model whose route is impossible or belongs to another model.

        Raises:
            RemoteFailure: the route is invalid or taken
        """
        if spec.web is None:
            return
        try:
            routes.check(spec.web.path)
        except ValueError as error:
            raise RemoteFailure(ErrorKind.INVALID, f"model {spec.name}: {error}") from None
        for other in self._registry.served:
            if (
                other.spec.web is not None
                and other.spec.web.path == spec.web.path
                and other.spec.name != spec.name
            ):
                raise RemoteFailure(
                    ErrorKind.EXISTS,
                    f"model {spec.name}: the route {spec.web.path} belongs to the model {other.spec.name}; choose another "
                    "with route=",
                )

    async def run(self) -> None:
        """Publish the routes after each change of the served models, for example when one is restored."""
        while True:
            changed = self._registry.changes.next
            await self.publish()
            await changed.wait()

    async def publish(self) -> None:
        """Make the frontend serve the current routes. Return when it does.

        A process that is exiting or starting is no failure: the next one gets the routes with its settings.
        """
        async with self._lock:
            specs = sorted(self._specs(), key=lambda spec: spec.name)
            document = {"routes": [_route(spec) for spec in specs], "origins": self._origins}
            if specs:
                document["pages"] = self._pages(specs)
            if document == self._published:
                return
            try:
                await self._frontend.set_routes(document)
            except (ServerRefused, Unreached) as error:
                _log.warning("routes not published", error=str(error))
            else:
                self._published = document

    def _specs(self) -> list[messages.ModelSpec]:
        """Return the typed models that serve, and those that will when they have been restored or are requested."""
        specs = {spec.name: spec for spec in self._registry.restoring.specs()}
        specs.update((one.spec.name, one.spec) for one in self._registry.served)
        return [spec for spec in specs.values() if spec.web is not None]

    def _pages(self, specs: list[messages.ModelSpec]) -> list[dict[str, str]]:
        content = json.dumps(openapi(specs)).encode()
        path = self._folder / f"openapi-{hash(content) & 0xFFFFFFFF:08x}.json"
        if not path.exists():
            for former in self._folder.glob("openapi-*.json"):
                former.unlink()
            path.write_bytes(content)
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


def openapi(specs: list[messages.ModelSpec]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of typed models.

    A schema whose name another model uses for a different one gets the model's name in front.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for spec in specs:
        if spec.web is None:
            continue
        renamed = {
            name: f"{spec.name}.{name}"
            for name, schema in spec.web.schemas.items()
            if schemas.get(name, schema) != schema
        }
        for name, schema in spec.web.schemas.items():
            schemas[renamed.get(name, name)] = _with_references(schema, renamed)
        operation = _with_references(spec.web.operation, renamed)
        paths[spec.web.path] = {
            "post": {"operationId": spec.name, "tags": [spec.name], **operation}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "pytriton-daemon", "version": own_version()},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _with_references(value: Any, renamed: dict[str, str]) -> Any:
    if not renamed:
        return value
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{renamed.get(one.rpartition('/')[2], one.rpartition('/')[2])}"
            if key == "$ref" and isinstance(one, str)
            else _with_references(one, renamed)
            for key, one in value.items()
        }
    return [_with_references(one, renamed) for one in value] if isinstance(value, list) else value


def _route(spec: messages.ModelSpec) -> dict[str, Any]:
    assert spec.web is not None  # checked by the caller
    return {
        "path": spec.web.path,
        "model": spec.name,
        "type": spec.web.media_type,
        "streams": spec.web.streams,
    }
