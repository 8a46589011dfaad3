"""The daemon's routes of typed functions: refused descriptions, and what is published of the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind
from pytriton.dispatcher import web_routes
from pytriton.dispatcher.web_routes import openapi

RESPONSES = {"responses": {"200": {"description": "A result"}}}


def web(path: str = "/m", **changed: Any) -> messages.WebRoute:
    fields = {"media_type": "application/json", "streams": False, "operation": RESPONSES}
    return messages.WebRoute(path, **{**fields, **changed})


def register(
    sim: SimulatedDaemon, route: messages.WebRoute, name: str = "m", *, replace: bool = False
) -> messages.AnyMessage:
    spec = msgspec.structs.replace(model_spec(name), web=route)
    return sim.answered(sim.client.ask(messages.Register(spec, replace), (b"callable",)))


def accept(
    sim: SimulatedDaemon, route: messages.WebRoute, name: str = "m", *, replace: bool = False
) -> None:
    assert isinstance(register(sim, route, name, replace=replace), messages.Registered)


def refusal(sim: SimulatedDaemon, route: messages.WebRoute, name: str = "m") -> messages.Failure:
    refused = register(sim, route, name)
    assert isinstance(refused, messages.Failure)
    return refused


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


HOSTILE: dict[str, tuple[messages.WebRoute, str]] = {
    "path of Triton": (web("/v2/models"), "reserved"),
    "path of the pages": (web("/docs/x"), "reserved"),
    "path with a line break": (web("/a\r\nX: y"), "a route is"),
    "path that ends with a line break": (web("/a\n"), "a route is"),
    "path with a query": (web("/a?b"), "a route is"),
    "path that climbs": (web("/a/../b"), "reserved"),
    "long path": (web("/" + "a" * 500), "a route is"),
    "no path": (web(""), "a route is"),
    "media type with a line break": (web(media_type="text/plain\r\nSet-Cookie: a=b"), "media type"),
    "media type that ends with a line break": (web(media_type="text/plain\n"), "media type"),
    "media type with a header behind it": (web(media_type="text/plain; a=\"\r\nX: y\""), "media type"),
    "long media type": (web(media_type="text/" + "a" * 500), "media type"),
    "media type that is none": (web(media_type="text"), "media type"),
    "media type in another script": (web(media_type="text/plaïn"), "media type"),
    "schema of 50 MB": (web(schemas={"A": {"description": "a" * (50 << 20)}}), "are accepted"),
    "schema of 5 MB": (web(schemas={"A": {"description": "a" * (5 << 20)}}), "bytes, more than"),
    "deep schema": (web(schemas={"A": nested(100)}), "levels"),
    "deep operation": (web(operation={**RESPONSES, "requestBody": nested(100)}), "levels"),
    "schema called as a path": (web(schemas={"../a": {}}), "cannot be named"),
    "schema without a name": (web(schemas={"": {}}), "cannot be named"),
    "schema that is a number": (web(schemas={"A": 1}), "not a JSON object"),
    "number that JSON lacks": (web(schemas={"A": {"default": float("nan")}}), "which is not JSON"),
    "bytes": (web(schemas={"A": {"default": b"a"}}), "which is not JSON"),
    "reference to another site": (web(schemas={"A": {"$ref": "https://other.example/a"}}), "refers to"),
    "reference to nothing": (web(schemas={"A": {"$ref": "#/components/schemas/B"}}), "refers to"),
    "operation of another model": (web(operation={**RESPONSES, "operationId": "other"}), "unknown member"),
    "operation with servers": (web(operation={**RESPONSES, "servers": [{"url": "https://other.example"}]}), "unknown member"),
    "no responses": (web(operation={}), "no responses"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_description_is_refused(sim: SimulatedDaemon, kind: str) -> None:
    route, words = HOSTILE[kind]
    refused = refusal(sim, route)
    assert refused.kind == ErrorKind.INVALID
    assert words in refused.text
    assert len(refused.text) < 1000
    accept(sim, web())


def test_a_route_belongs_to_one_model(sim: SimulatedDaemon) -> None:
    accept(sim, web("/a"), "first")
    refused = refusal(sim, web("/a"), "second")
    assert refused.kind == ErrorKind.EXISTS
    accept(sim, web("/a"), "first", replace=True)


def test_the_total_size_of_descriptions_is_limited(sim: SimulatedDaemon) -> None:
    large = {"A": {"description": "a" * 1_000_000}}
    for number in range(33):
        accept(sim, web(f"/{number}", schemas=large), str(number))
    refused = refusal(sim, web("/33", schemas=large), "33")
    assert "in total" in refused.text
    accept(sim, web("/0"), "0", replace=True)
    accept(sim, web("/33", schemas=large), "33")


def test_each_description_is_encoded_once(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    path_item = web_routes._path_item

    def encode(spec: messages.ModelSpec, renamed: Mapping[str, str]) -> dict[str, Any]:
        encoded.append(spec.name)
        return path_item(spec, renamed)

    monkeypatch.setattr(web_routes, "_path_item", encode)
    for name in ("a", "b", "c"):
        accept(sim, web(f"/{name}"), name)
    assert encoded == ["a", "b", "c"]


def test_concurrent_registrations_share_a_publication(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []

    async def set_routes(document: dict[str, Any]) -> None:
        published.append(len(document["routes"]))
        await asyncio.sleep(60)

    monkeypatch.setattr(sim.frontend, "set_routes", set_routes)
    specs = [msgspec.structs.replace(model_spec(name), web=web(f"/{name}")) for name in "abcdef"]
    asked = [sim.client.ask(messages.Register(spec, False), (b"callable",)) for spec in specs]
    for one in asked:
        assert isinstance(sim.answered(one), messages.Registered)
    assert published == [1, 6]


def test_models_that_got_one_route_at_the_same_time_do_not_stop_the_others(
    sim: SimulatedDaemon,
) -> None:
    spec = msgspec.structs.replace(model_spec("second"), web=web("/a"))
    second = sim.client.ask(messages.Register(spec, False), (b"callable",))
    accept(sim, web("/a"), "first")
    sim.answered(second)
    accept(sim, web("/b"), "third")
    routes = sim.frontend.routes["routes"]
    assert sorted(one["path"] for one in routes) == ["/a", "/b"]


def test_the_document_is_published_whatever_the_models_are_called(sim: SimulatedDaemon) -> None:
    for name in ("b.Item", "b", "a"):
        schemas = {"Item": {"title": name}, "b.Item": {"title": name}}
        accept(sim, web(f"/{name}", schemas=schemas), name)
    (file,) = [
        one["file"] for one in sim.frontend.routes["pages"] if one["path"] == "/openapi.json"
    ]
    schemas = json.loads(Path(file).read_text())["components"]["schemas"]
    titles = [one["title"] for one in schemas.values()]
    assert sorted(titles) == ["a", "a", "b", "b", "b.Item", "b.Item"]


def test_schemas_of_the_same_name_are_distinguished() -> None:
    def spec(name: str, kind: str) -> messages.ModelSpec:
        reference = {"$ref": "#/components/schemas/Item"}
        content = {"application/json": {"schema": reference}}
        schemas = {
            "Item": {"type": "object", "properties": {"x": {"type": kind}}},
            "Items": {"items": reference, "discriminator": {"mapping": {"a": reference["$ref"]}}},
        }
        operation = {**RESPONSES, "requestBody": {"content": content}}
        return msgspec.structs.replace(
            model_spec(name), web=web(f"/{name}", operation=operation, schemas=schemas)
        )  # fmt: skip

    document = openapi([spec("a", "integer"), spec("b", "string"), spec("c", "integer")])
    schemas = document["components"]["schemas"]
    assert sorted(schemas) == ["Item", "Items", "b.Item", "b.Items"]
    for name, item in (("a", "Item"), ("b", "b.Item"), ("c", "Item")):
        content = document["paths"][f"/{name}"]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"]["$ref"] == f"#/components/schemas/{item}"
    assert schemas["b.Items"]["items"]["$ref"] == "#/components/schemas/b.Item"
    assert schemas["b.Items"]["discriminator"]["mapping"]["a"] == "#/components/schemas/b.Item"


def test_the_document_is_for_the_daemons_user_alone(sim: SimulatedDaemon) -> None:
    accept(sim, web())
    (document,) = sim.rundir.path.glob("openapi-*.json")
    assert document.stat().st_mode & 0o777 == 0o600
