"""Every system of the typed workloads is sent the same arguments, and its response is compared with the same result."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from benchmarks import systems, workloads
from benchmarks.load.typed import arguments
from benchmarks.load.wire import Request, WrongAnswer
from benchmarks.systems import SERVERS, Ports, System

from pytriton.typed.multipart import parse_multipart

SYSTEMS = [one for one in systems.SYSTEMS if one.only]
LOADS = [one for one in workloads.WORKLOADS if one.group == "typed"]


def sent(request: Request) -> dict[str, Any]:
    """Return the arguments in a request."""
    kind, body = request.headers["content-type"], request.body
    if size := request.headers.get("inference-header-content-length"):
        head = json.loads(body[: int(size)])
        kind, body = head["parameters"]["content_type"], body[int(size) + 4 :]
    if kind.startswith("multipart/"):
        return {one.name: one.data for one in parse_multipart(body, kind)}
    if kind == "application/msgpack":
        return dict(msgspec.msgpack.decode(body))
    given = json.loads(body)
    if "inputs" in given:
        given = json.loads(given["inputs"][0]["data"][0])
    if "image" in given:
        given["image"] = base64.b64decode(given["image"])
    return dict(given)


def response(system: System, result: Any) -> bytes:
    """Return a result in the format in which a system responds."""
    text = json.dumps(result)
    if system.name == "ours-kserve":
        return json.dumps({"outputs": [{"name": "body", "data": [text]}]}).encode()
    return msgspec.msgpack.encode(result) if system.name == "mosec-msgpack" else text.encode()


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: one.name)
@pytest.mark.parametrize("load", LOADS, ids=lambda one: one.key)
def test_all_get_the_same_arguments_and_must_return_the_same_result(
    monkeypatch: pytest.MonkeyPatch, system: System, load: workloads.Workload
) -> None:
    monkeypatch.syspath_prepend(SERVERS)
    import work

    request = system.request(load, "http", Ports(1, 2, 3, 4))
    assert sent(request) == arguments(load.payload)
    result = getattr(work, load.model.name)(**sent(request))
    request.check(response(system, result), {})
    for wrong in (response(system, []), b"{"):
        with pytest.raises(WrongAnswer):
            request.check(wrong, {})


def test_a_plain_name_also_chooses_the_systems_for_typed_functions() -> None:
    chosen = systems.select("ours,mosec")
    names = {one.name for one in systems.needed(chosen, LOADS, set())}
    assert names == {"ours-route", "ours-kserve", "mosec-json", "mosec-msgpack"}
    others = {one.name for one in systems.needed(chosen, workloads.select("A"), set())}
    assert others == {"ours", "mosec"}
