"""Requests of the corpus other than inference: repository, traces, log, shared memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from support.frontend.requests import Ask, asked, inputs, tensor


def repository() -> Iterator[Ask]:
    """Return requests about the model repository."""
    path = "/v2/repository/"
    for text in (
        "",
        "{}",
        '{"ready":true}',
        '{"ready":false}',
        '{"ready":1}',
        "[]",
        "x",
        '{"other":1}',
    ):
        yield Ask(f"index {text!r}", f"{path}index", text.encode())
    for model, text in (("nobody", "{}"), ("one", "{}"), ("one", ""), ("one", '{"parameters":{"config":"x"}}'), ("one", '{"parameters":{"config":5}}'), ("one", '{"parameters":{"other":"x"}}'),
                        ("one", '{"parameters":5}'), ("one", "x"), ("gone", "{}"), ("one", '{"parameters":{"file:1/x":"AAAA"}}'), ("one", '{"parameters":{"file:1/x":"=?"}}'), ("one", "[]")):  # fmt: skip
        yield Ask(f"load {model} {text!r}", f"{path}models/{model}/load", text.encode())
    for model, text in (
        ("nobody", "{}"),
        ("single", '{"parameters":{"unload_dependents":true}}'),
        ("single", ""),
        ("single", '{"parameters":{"unload_dependents":5}}'),
        ("single", '{"parameters":{"x":5}}'),
        ("single", "x"),
    ):
        yield Ask(f"unload {model} {text!r}", f"{path}models/{model}/unload", text.encode())
    for text in (
        "models/one/nothing",
        "models/one",
        "nothing",
        "local/index",
        "local/models/one/load",
    ):
        yield Ask(f"repository {text}", f"{path}{text}", b"{}")
    yield Ask("get a load", f"{path}models/one/load")


def settings() -> Iterator[Ask]:
    """Return requests about traces and the log."""
    document: Any
    for path in (
        "/v2/trace/setting",
        "/v2/models/one/trace/setting",
        "/v2/models/nobody/trace/setting",
        "/v2/logging",
        "/v2/models/one/versions/1/trace/setting",
    ):
        yield Ask(f"get {path}", path)
    for document in ({"trace_rate": "5"}, {"trace_rate": "x"}, {"trace_rate": 5}, {"trace_count": "-2"}, {"trace_count": "7"}, {"log_frequency": "3"}, {"trace_level": ["OFF"]}, {"trace_level": ["TIMESTAMPS"]},
                     {"trace_level": ["TENSORS", "OFF"]}, {"trace_file": "x"}, {"trace_rate": None}, {"trace_count": None}, {"trace_level": None}, {}, [], {"trace_rate": "99999999999999"}):  # fmt: skip
        yield Ask(f"trace {document}", "/v2/trace/setting", json.dumps(document).encode())
    for document in (
        {"trace_rate": "9"},
        {"trace_rate": None},
        {"trace_count": "3", "log_frequency": "2"},
    ):
        body = json.dumps(document).encode()
        yield Ask(f"trace of one {document}", "/v2/models/one/trace/setting", body)
    yield Ask("trace of nobody", "/v2/models/nobody/trace/setting", b'{"trace_rate":"1"}')
    yield Ask("trace, no JSON", "/v2/trace/setting", b"x")
    for document in ({"log_info": False}, {"log_info": 1}, {"log_file": "x"}, {"log_format": "ISO8601"}, {"log_format": "x"}, {"log_format": "default"}, {"log_verbose_level": 1}, {"log_verbose_level": 0},
                     {"log_verbose_level": -1}, {"log_verbose_level": True}, {"log_info": True}, {}):  # fmt: skip
        yield Ask(f"log {document}", "/v2/logging", json.dumps(document).encode())
    yield Ask("log, no JSON", "/v2/logging", b"x")


def memory() -> Iterator[Ask]:
    """Return requests about shared memory."""
    document: Any
    for kind in ("system", "cuda"):
        path = f"/v2/{kind}sharedmemory"
        for more in ("/status", "/region/x/status", "/region/x", "", "/nothing"):
            yield Ask(f"get {path}{more}", path + more)
        for document in ({}, {"key": "/nobody-has-this", "byte_size": 8}, {"key": "/x", "offset": -1, "byte_size": 8}, {"key": 5, "byte_size": 8}, {"key": "/x", "byte_size": "8"}, {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8},
                         {"raw_handle": {}, "device_id": 0, "byte_size": 8}, [], "x"):  # fmt: skip
            body = json.dumps(document).encode()
            yield Ask(f"register {kind} {document}", f"{path}/region/x/register", body)
        yield Ask(f"unregister {kind} x", f"{path}/region/x/unregister", b"")
        yield Ask(f"unregister {kind}", f"{path}/unregister", b"")
    size = {"shared_memory_byte_size": 8}
    for name, region in (
        ("that nobody knows", {"shared_memory_region": "x", **size}),
        ("without a size", {"shared_memory_region": "x"}),
        ("that is no text", {"shared_memory_region": 5, **size}),
    ):
        yield asked(f"input in a region {name}", inputs(tensor(None, parameters=region)))
