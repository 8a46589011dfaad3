"""Requests sent to both NVIDIA's HTTP frontend and the native one, in this order: valid and invalid ones."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

from support.frontend import admin_corpus
from support.frontend.requests import FLOATS, VALUES, Ask, asked, binary, inputs, tensor


def corpus() -> Iterator[Ask]:
    """Return all requests."""
    yield from _information()
    yield from _types()
    yield from _structure()
    yield from _numbers()
    yield from _outputs()
    yield from _binary()
    yield from _parameters()
    yield from _encodings()
    yield from _generate()
    yield from admin_corpus.repository()
    yield from admin_corpus.settings()
    yield from admin_corpus.memory()


def _information() -> Iterator[Ask]:
    for path in (
        "/v2/health/live", "/v2/health/ready", "/v2", "/v2/", "/", "/v3", "/v2/nothing", "/v2/health/nothing", "/v2/models",
        "/v2/models/one", "/v2/models/one/", "/v2/models/one/versions/1", "/v2/models/one/versions/1/", "/v2/models/one/ready",
        "/v2/models/one/versions/1/ready", "/v2/models/one/versions/2/ready", "/v2/models/one/versions/x/ready",
        "/v2/models/nobody/ready", "/v2/models/gone/ready", "/v2/models/gone", "/v2/models/nobody",
        "/v2/models/one/versions/2", "/v2/models/one/versions/0", "/v2/models/one/versions/-1", "/v2/models/one/versions/x",
        "/v2/models/one/versions/99999999999999999999", "/v2/models/one/config", "/v2/models/one/versions/1/config",
        "/v2/models/nobody/config", "/v2/models/types/config", "/v2/models/many", "/v2/models/types",
        "/v2/models/nobody/stats", "/v2/models/one/versions/7/stats", "/v2/models/one/infer", "/v2/models/one/nothing",
        "/v2/models/one/versions/1/nothing", "/v2/repository/index", "/metrics", "/v2/models/one/versions",
        "/v2/models//ready", "/v2/models/one%2F/ready", "/v2/models/%6Fne/ready", "/v2/health/live?x=1", "/v2/models/one/ready?a=b",
    ):  # fmt: skip
        yield Ask(f"get {path}", path)
    for path in (
        "/v2/health/live",
        "/v2",
        "/v2/models/one",
        "/v2/models/one/config",
        "/v2/models/one/ready",
        "/v2/nothing",
    ):
        yield Ask(f"post {path}", path, b"{}")
    for verb in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        yield Ask(f"{verb} infer", "/v2/models/one/infer", b"", method=verb)
        yield Ask(f"{verb} live", "/v2/health/live", method=verb)


def _types() -> Iterator[Ask]:
    path = "types/infer"
    to_binary = {"parameters": {"binary_data_output": True}}
    for datatype, values in VALUES.items():
        one = {"name": f"INPUT{datatype}", "shape": [2], "datatype": datatype, "data": values}
        yield asked(f"type {datatype}", inputs(one), path)
        yield asked(f"type {datatype}, binary answer", inputs(one, **to_binary), path)
        wrongs: Any = (
            [True, "x"],
            [1.5, 2],
            [None, None],
            [-1, 2**70],
            [[1], [2]],
            [{}, {}],
            "text",
            5,
        )
        for wrong in wrongs:
            yield asked(f"type {datatype}, data {wrong}", inputs({**one, "data": wrong}), path)
    for datatype in ("FP16", "BF16"):
        one = {"name": f"INPUT{datatype}", "shape": [2], "datatype": datatype}
        yield asked(f"type {datatype} as JSON", inputs({**one, "data": [1.0, 2.0]}), path)
        sized = {**one, "parameters": {"binary_data_size": 4}}
        halves = b"\0<\0@"
        yield binary(f"type {datatype}, binary", inputs(sized, **to_binary), halves, path=path)
        yield binary(f"type {datatype}, answered as JSON", inputs(sized), halves, path=path)


def _structure() -> Iterator[Ask]:
    for text in ("", "{", "[]", "5", "null", '"x"', "{}", '{"inputs":{}}', '{"inputs":[]}', '{"inputs":[5]}', '{"inputs":null}', "\ufeff{}",
                 '{"inputs":[{}]}', '{"inputs":[{"name":5}]}', '{"inputs":"x"}', "{'a':1}", '{"a":1,}', "{\"a\":\x01}", "nonsense"):  # fmt: skip
        yield asked(f"body {text!r}", text)
    for name in ("name", "shape", "datatype", "data"):
        yield asked(f"without {name}", inputs(tensor(**{name: None})))
    for name, value in (("name", 5), ("name", ""), ("name", "INPUT9"), ("shape", "x"), ("shape", [1, "x"]), ("shape", [1.5, 2]), ("shape", [-1, 2]),
                        ("shape", []), ("shape", [2]), ("shape", [1, 3]), ("shape", [1, 1]), ("shape", [2, 1]), ("shape", [0, 2]), ("shape", [9, 1]),
                        ("shape", 5), ("shape", {}), ("datatype", "FP99"), ("datatype", 5), ("datatype", "INT32"), ("datatype", "fp32"),
                        ("shape", [1, 2**63]), ("shape", [1, -(2**63)]), ("parameters", 5), ("parameters", {}), ("parameters", {"x": 1}),
                        ("parameters", []), ("unknown", 5)):  # fmt: skip
        yield asked(f"input with {name} {value!r}", inputs(tensor(**{name: value})))
    yield asked("the same input twice", inputs(None, None))
    yield asked("nested data", inputs(tensor([[1.0, 2.0]])))
    yield asked("deeply nested data", inputs(tensor([[[[[1.0]]], 2.0]])))
    yield asked("too much data", inputs(tensor([1.0, 2.0, 3.0])))
    yield asked("too little data", inputs(tensor([1.0])))
    yield asked("empty data", inputs(tensor([])))
    yield asked("an id", inputs(None, id="7"))
    yield asked("an id that is no string", inputs(None, id=7))
    yield asked("an empty id", inputs(None, id=""))
    yield asked("an id with more than ASCII", inputs(None, id="\u00e4\n\u20ac"))
    yield asked("a member that nobody knows", inputs(None, nobody=[1]))
    yield asked("keys with escapes", json.dumps(inputs(None)).replace("inputs", "\\u0069nputs"))
    yield asked("a member twice", json.dumps(inputs(None, id="1"))[:-1] + ', "id": "2"}')
    yield asked("something behind it", json.dumps(inputs(None)) + "x")
    yield asked("spaces behind it", json.dumps(inputs(None)) + " \n")
    yield asked("of nobody", inputs(None), "nobody/infer")
    yield asked("of one that is not loaded", inputs(None), "gone/infer")
    yield asked("of version 1", inputs(None), "one/versions/1/infer")
    yield asked("of version 2", inputs(None), "one/versions/2/infer")
    yield asked("of version x", inputs(None), "one/versions/x/infer")
    yield asked("of a decoupled model", inputs(tensor(shape=[2])), "many/infer")
    yield asked("that fails", inputs(None, parameters={"fail": 'not "today" \u00e4'}))
    yield asked(
        "with an optional input",
        inputs(None, {"name": "INPUT1", "shape": [1, 2], "datatype": "BYTES", "data": ["a", ""]}),
    )
    yield asked(
        "only the optional input",
        inputs({"name": "INPUT1", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}),
    )


def _numbers() -> Iterator[Ask]:
    for text in ("1", "-0", "1e3", "1E-3", "0.1", "1.0000000000000002", "1e38", "1e39", "-1e39", "1e999", "NaN", "Infinity", "-Infinity", "Inf", "nan",
                 "01", "1.", ".5", "+1", "0x1", "1e", "--1", "true", "null", "3.4028235e38", "1e-46", "123456789.123", "16777217"):  # fmt: skip
        body = json.dumps(inputs(None)).replace("1.0", text)
        yield asked(f"number {text}", body)


def _outputs() -> Iterator[Ask]:
    for name, wanted in (
        ("one", [{"name": "OUTPUT0"}]), ("none", []), ("an unknown one", [{"name": "OUTPUT9"}]), ("one twice", [{"name": "OUTPUT0"}] * 2),
        ("one without a name", [{}]), ("a number", [5]), ("no list", {}), ("as binary", [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]),
        ("not as binary", [{"name": "OUTPUT0", "parameters": {"binary_data": False}}]), ("binary a number", [{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]),
        ("classes", [{"name": "OUTPUT0", "parameters": {"classification": 1}}]), ("more classes", [{"name": "OUTPUT0", "parameters": {"classification": 9}}]),
        ("no classes", [{"name": "OUTPUT0", "parameters": {"classification": 0}}]), ("fewer classes than none", [{"name": "OUTPUT0", "parameters": {"classification": -1}}]),
        ("classes as text", [{"name": "OUTPUT0", "parameters": {"classification": "1"}}]),
        ("classes as binary", [{"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": True}}]), ("a parameter nobody knows", [{"name": "OUTPUT0", "parameters": {"x": 1}}]),
        ("a region nobody knows", [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "x", "shared_memory_byte_size": 8}}]),
        ("a region without a size", [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "x"}}]),
        ("a region of text", [{"name": "OUTPUT0", "parameters": {"shared_memory_region": 5, "shared_memory_byte_size": 8}}]),
    ):  # fmt: skip
        yield asked(f"outputs: {name}", inputs(None, outputs=wanted))
    for datatype in ("INT32", "UINT8", "FP64", "BOOL", "BYTES"):
        data = VALUES[datatype]
        one = {"name": f"INPUT{datatype}", "shape": [2], "datatype": datatype, "data": data}
        wanted = [{"name": f"OUTPUT{datatype}", "parameters": {"classification": 2}}]
        yield asked(f"classes of {datatype}", {"inputs": [one], "outputs": wanted}, "types/infer")
    batch = tensor([1.0, 3.0, 2.0, 6.0, 5.0, 4.0], shape=[2, 3])
    wanted = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    yield asked("classes of a batch", inputs(batch, outputs=wanted))
    for value in (True, False, 1, "true", None):
        parameters = {"binary_data_output": value}
        yield asked(f"binary_data_output {value!r}", inputs(None, parameters=parameters))
    wanted = [{"name": "OUTPUT0", "parameters": {"binary_data": False}}]
    both = inputs(None, parameters={"binary_data_output": True}, outputs=wanted)
    yield asked("binary_data_output, and an output that is not", both)


def _binary() -> Iterator[Ask]:
    def of_size(size: Any) -> dict[str, Any]:
        return tensor(None, parameters={"binary_data_size": size})

    sized = of_size(8)
    yield binary("binary", inputs(sized), FLOATS)
    to_binary = {"binary_data_output": True}
    yield binary("binary, both ways", inputs(sized, parameters=to_binary), FLOATS)
    yield binary("binary, too little", inputs(sized), FLOATS[:7])
    yield binary("binary, too much", inputs(sized), FLOATS + b"x")
    yield binary("binary, size too small", inputs(of_size(4)), FLOATS[:4])
    for size in (-8, "8", 1.5, None, 2**63, 2**64, 0):
        yield binary(f"binary, size {size!r}", inputs(of_size(size)), FLOATS)
    twice = tensor(parameters={"binary_data_size": 8})
    yield binary("binary, and data as well", inputs(twice), FLOATS)
    for length in ("-1", "x", "", "99999", "99999999999999999999", "1.5", " 5", "+5", "5x"):
        yield binary(f"binary, header length {length!r}", inputs(sized), FLOATS, length)
    raw = {"Inference-Header-Content-Length": "0"}
    yield Ask("raw", "/v2/models/single/infer", FLOATS, raw)
    yield Ask("raw, of several inputs", "/v2/models/one/infer", FLOATS, raw)
    yield Ask("raw, nothing", "/v2/models/single/infer", b"", raw)
    yield Ask("raw, odd size", "/v2/models/single/infer", FLOATS[:7], raw)
    strings = {**of_size(10), "name": "INPUT1", "shape": [1, 2], "datatype": "BYTES"}
    for name, data in (
        ("right", b"\1\0\0\0a\1\0\0\0b"),
        ("no UTF-8", b"\1\0\0\0\xff\1\0\0\0b"),
        ("too long", b"\1\0\0\0a\xff\0\0\0b"),
        ("cut", b"\6\0\0\0aaaaaa"),
    ):
        yield binary(f"binary strings, {name}", inputs(None, strings), data)
    yield binary("two binary inputs", inputs(sized, strings), FLOATS + b"\1\0\0\0a\1\0\0\0b")


def _parameters() -> Iterator[Ask]:
    for name, value in (
        ("text", "\u00e4"), ("number", 5), ("negative", -5), ("double", 2.5), ("yes", True), ("nothing", None), ("list", [1]), ("object", {}), ("huge", 2**63), ("larger", 2**65),
        ("sequence_id", 5), ("sequence_id", "five"), ("sequence_id", -5), ("sequence_id", 1.5), ("sequence_id", True), ("sequence_id", 0), ("sequence_id", ""), ("sequence_id", 2**64 - 1),
        ("sequence_start", True), ("sequence_start", 1), ("sequence_end", True), ("sequence_end", "x"), ("priority", 1), ("priority", -1), ("priority", "1"), ("priority", 2**64 - 1),
        ("timeout", 60000000), ("timeout", "x"), ("timeout", -1), ("timeout", 1.5), ("triton_x", 1), ("triton_enable_empty_final_response", True), ("headers", 1), ("", 1),
    ):  # fmt: skip
        yield asked(
            f"parameter {name} {value!r}", inputs(None, parameters={"report": True, name: value})
        )
    for value in (5, [], "x", None):
        yield asked(f"parameters {value!r}", inputs(None, parameters=value))
    for name, parameters in (("start", {"sequence_id": 9, "sequence_start": True}), ("go on", {"sequence_id": 9}),
                             ("end", {"sequence_id": 9, "sequence_end": True}), ("end again", {"sequence_id": 9, "sequence_end": True}),
                             ("without id", {}), ("by name", {"sequence_id": "nine", "sequence_start": True, "sequence_end": True})):  # fmt: skip
        yield asked(f"sequence, {name}", inputs(None, parameters=parameters), "sequence/infer")


def _encodings() -> Iterator[Ask]:
    body = json.dumps(inputs(None)).encode()
    path = "/v2/models/one/infer"
    for name, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("gzip", b"nonsense"), ("deflate", b"nonsense"), ("gzip", gzip.compress(body)[:-9]),
                         ("gzip", gzip.compress(body) + b"x"), ("br", body), ("identity", body), ("", body), ("GZIP", gzip.compress(body)), ("gzip, deflate", body)):  # fmt: skip
        case = f"encoded {name!r} {packed[:3]!r} {len(packed)}"
        yield Ask(case, path, packed, {"Content-Encoding": name})
    plain = ("gzip", "deflate", "br", "identity", "*")
    listed = ("gzip, deflate", "deflate, gzip", "gzip;q=0", "gzip;q=0.5, deflate;q=1", "x")
    for name in (*plain, *listed):
        yield Ask(f"accepting {name}", path, body, {"Accept-Encoding": name})
    for name in ("text/plain", "application/octet-stream", ""):
        yield Ask(f"content type {name!r}", path, body, {"Content-Type": name})


def _generate() -> Iterator[Ask]:
    for model in ("one", "many", "nobody", "types"):
        for way in ("generate", "generate_stream"):
            for name, body in (("nothing", {}), ("its inputs", {"INPUT0": [1.0, 2.0]}), ("a scalar", {"INPUT0": 1.5}), ("a text", {"INPUT0": 1.5, "INPUT1": "hello"}), ("an id", {"id": "7", "INPUT0": 1.5}),
                               ("what nobody knows", {"INPUT0": 1.5, "other": 5}), ("parameters", {"INPUT0": 1.5, "parameters": {"report": True, "answers": 3}}), ("a text for a number", {"INPUT0": "x"}),
                               ("nested", {"INPUT0": [[1.0]]}), ("null", {"INPUT0": None}), ("none at all", {"INPUT0": 1.5, "parameters": {"answers": 0}}), ("failing", {"INPUT0": 1.5, "parameters": {"fail": "oh"}}),
                               ("two answers", {"INPUT0": 1.5, "answers": 2}), ("mixed", {"INPUT0": [1.5, "x"]}), ("an id that is no text", {"id": 7, "INPUT0": 1.5})):  # fmt: skip
                yield asked(f"{way} of {model}: {name}", body, f"{model}/{way}")
            yield asked(f"{way} of {model}: no JSON", "x", f"{model}/{way}")
            yield asked(f"{way} of {model}: a list", "[]", f"{model}/{way}")
    yield Ask("generate without a body", "/v2/models/one/generate")
