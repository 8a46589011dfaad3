"""gRPC calls sent to both NVIDIA's frontend and the native one, in this order: valid and invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from support.frontend.grpc.requests import FLOATS, STRINGS, Call, output, request, tensor


def corpus() -> Iterator[Call]:
    """Return all calls."""
    yield from _information()
    yield from _inference()
    yield from _contents()
    yield from _parameters()
    yield from _streams()
    yield from _repository()
    yield from _settings()
    yield from _memory()


def _information() -> Iterator[Call]:
    yield Call("live", "ServerLive", [pb.ServerLiveRequest()])
    yield Call("ready", "ServerReady", [pb.ServerReadyRequest()])
    yield Call("metadata", "ServerMetadata", [pb.ServerMetadataRequest()])
    for name, version in (
        ("one", ""),
        ("one", "1"),
        ("one", "2"),
        ("one", "x"),
        ("one", "0"),
        ("one", "-1"),
        ("one", "-2"),
        ("one", "9" * 30),
        ("one", "1x"),
        ("nobody", ""),
        ("gone", ""),
        ("", ""),
        ("types", ""),
    ):
        yield Call(
            f"{name!r} {version!r} ready",
            "ModelReady",
            [pb.ModelReadyRequest(name=name, version=version)],
        )
        yield Call(
            f"{name!r} {version!r} metadata",
            "ModelMetadata",
            [pb.ModelMetadataRequest(name=name, version=version)],
        )
        yield Call(
            f"{name!r} {version!r} config",
            "ModelConfig",
            [pb.ModelConfigRequest(name=name, version=version)],
        )
        if name != "":
            yield Call(
                f"{name!r} {version!r} infer", "ModelInfer", [request(model=name, version=version)]
            )
    for name, version in (("nobody", ""), ("one", "7"), ("one", "x")):
        yield Call(
            f"{name!r} {version!r} statistics",
            "ModelStatistics",
            [pb.ModelStatisticsRequest(name=name, version=version)],
        )


def _inference() -> Iterator[Call]:
    yield Call("inference", "ModelInfer", [request()])
    yield Call("inference with an id", "ModelInfer", [request(id="\u00e4 7")])
    yield Call("of a decoupled model", "ModelInfer", [request(model="many")])
    yield Call("that fails", "ModelInfer", [request(fail="not \u00e4 today")])
    yield Call("without a model", "ModelInfer", [request(model="")])
    yield Call("no input", "ModelInfer", [pb.ModelInferRequest(model_name="one")])
    yield Call(
        "no input, but raw contents",
        "ModelInfer",
        [pb.ModelInferRequest(model_name="one", raw_input_contents=[FLOATS])],
    )
    for name, given in (
        ("unknown input", tensor("INPUT9")), ("no name", tensor("")), ("unknown type", tensor(datatype="FP99")), ("no type", tensor(datatype="")), ("another type", tensor(datatype="INT32")),
        ("no shape", tensor(shape=())), ("short shape", tensor(shape=(2,))), ("long shape", tensor(shape=(1, 1, 2))), ("negative shape", tensor(shape=(-1, 2))), ("huge shape", tensor(shape=(1, 2**62))),
        ("larger shape", tensor(shape=(1, 3))), ("smaller shape", tensor(shape=(1, 1))), ("batch of 9", tensor(shape=(9, 1))), ("empty shape", tensor(shape=(0, 2))), ("a parameter", tensor(x=1)), ("binary_data_size", tensor(binary_data_size=8)),
    ):  # fmt: skip
        yield Call(f"input with {name}", "ModelInfer", [request(given)])
    for name, raw in (
        ("none", ()),
        ("two", (FLOATS, FLOATS)),
        ("short", (FLOATS[:7],)),
        ("long", (FLOATS + b"x",)),
        ("empty", (b"",)),
    ):
        yield Call(f"raw contents: {name}", "ModelInfer", [request(raw=raw)])
    yield Call(
        "the same input twice", "ModelInfer", [request(tensor(), tensor(), raw=(FLOATS, FLOATS))]
    )
    text = tensor("INPUT1", "BYTES")
    for name, data in (
        ("right", STRINGS),
        ("no UTF-8", b"\1\0\0\0\xff\1\0\0\0b"),
        ("cut", STRINGS[:-1]),
        ("one", STRINGS[:5]),
        ("three", STRINGS + STRINGS[:5]),
        ("too long", b"\xff\xff\xff\xffa"),
        ("cut size", STRINGS + b"\1"),
    ):
        yield Call(f"strings: {name}", "ModelInfer", [request(tensor(), text, raw=(FLOATS, data))])
    for name, wanted in (("one", [output()]), ("unknown", [output("OUTPUT9")]), ("twice", [output()] * 2), ("no name", [output("")]), ("classes", [output(classification=2)]), ("many classes", [output(classification=9)]), ("no classes", [output(classification=0)]),
                         ("negative classes", [output(classification=-1)]), ("classes as text", [output(classification="1")]), ("a parameter", [output(x=1)]), ("binary_data", [output(binary_data=True)]),
                         ("a region", [output(shared_memory_region="x", shared_memory_byte_size=8)]), ("a region without a size", [output(shared_memory_region="x")]), ("a region as number", [output(shared_memory_region=5, shared_memory_byte_size=8)]), ("a size without a region", [output(shared_memory_byte_size=8)])):  # fmt: skip
        yield Call(f"outputs: {name}", "ModelInfer", [request(outputs=wanted)])
    yield Call(
        "input in a region",
        "ModelInfer",
        [request(tensor(shared_memory_region="x", shared_memory_byte_size=8), raw=())],
    )
    yield Call(
        "input in a region without a size",
        "ModelInfer",
        [request(tensor(shared_memory_region="x"), raw=())],
    )
    yield Call(
        "input in a region, and raw contents",
        "ModelInfer",
        [request(tensor(shared_memory_region="x", shared_memory_byte_size=8))],
    )
    yield Call(
        "classes of a batch",
        "ModelInfer",
        [request(tensor(shape=(2, 1)), outputs=[output(classification=1)])],
    )


def _contents() -> Iterator[Call]:
    values: dict[str, tuple[str, Sequence[Any]]] = {
        "BOOL": ("bool_contents", [True, False]), "INT8": ("int_contents", [-128, 127]), "INT16": ("int_contents", [-5, 5]), "INT32": ("int_contents", [-(2**31), 2**31 - 1]), "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
        "UINT8": ("uint_contents", [0, 255]), "UINT16": ("uint_contents", [0, 65535]), "UINT32": ("uint_contents", [0, 2**32 - 1]), "UINT64": ("uint64_contents", [0, 2**64 - 1]),
        "FP32": ("fp32_contents", [1.5, -2.0]), "FP64": ("fp64_contents", [0.1, -1e300]), "BYTES": ("bytes_contents", [b"a", b"\xff\0"]),
    }  # fmt: skip
    for datatype, (name, data) in values.items():
        for count in (2, 1, 0):
            contents = pb.InferTensorContents(**{name: data[:count]})
            given = tensor(f"INPUT{datatype}", datatype, (2,), contents)
            yield Call(
                f"contents of {datatype}, {count}",
                "ModelInfer",
                [request(given, model="types", raw=())],
            )
        wrong = (
            pb.InferTensorContents(fp32_contents=[1.0, 2.0])
            if datatype != "FP32"
            else pb.InferTensorContents(int_contents=[1, 2])
        )
        yield Call(
            f"contents of another type for {datatype}",
            "ModelInfer",
            [request(tensor(f"INPUT{datatype}", datatype, (2,), wrong), model="types", raw=())],
        )
    over = pb.InferTensorContents(int_contents=[300, -300])
    yield Call(
        "contents that INT8 cannot hold",
        "ModelInfer",
        [request(tensor("INPUTINT8", "INT8", (2,), over), model="types", raw=())],
    )
    over = pb.InferTensorContents(uint_contents=[300, 70000])
    yield Call(
        "contents that UINT8 cannot hold",
        "ModelInfer",
        [request(tensor("INPUTUINT8", "UINT8", (2,), over), model="types", raw=())],
    )
    for datatype in ("FP16", "BF16"):
        contents = pb.InferTensorContents(fp32_contents=[1.0, 2.0])
        yield Call(
            f"contents of {datatype}",
            "ModelInfer",
            [request(tensor(f"INPUT{datatype}", datatype, (2,), contents), model="types", raw=())],
        )
        yield Call(
            f"raw contents of {datatype}",
            "ModelInfer",
            [request(tensor(f"INPUT{datatype}", datatype, (2,)), model="types", raw=[b"\0<\0@"])],
        )
    both = tensor(contents=pb.InferTensorContents(fp32_contents=[1.0, 2.0]))
    yield Call("contents, and raw ones", "ModelInfer", [request(both)])
    yield Call(
        "contents of two types",
        "ModelInfer",
        [
            request(
                tensor(contents=pb.InferTensorContents(fp32_contents=[1.0, 2.0], int_contents=[1])),
                raw=(),
            )
        ],
    )


def _parameters() -> Iterator[Call]:
    value: Any
    parameters: Any
    for name, value in (
        ("text", "\u00e4"), ("number", 5), ("negative", -5), ("double", 2.5), ("yes", True), ("sequence_id", 5), ("sequence_id", "five"), ("sequence_id", -5), ("sequence_id", True), ("sequence_id", 2**64 - 1), ("sequence_id", 1.5), ("sequence_id", ""),
        ("sequence_start", True), ("sequence_start", 1), ("sequence_end", True), ("sequence_end", "x"), ("priority", 1), ("priority", -1), ("priority", "1"), ("priority", 2**64 - 1), ("priority", True), ("timeout", 60000000), ("timeout", "x"), ("timeout", -1), ("timeout", 2**64 - 1),
        ("triton_x", 1), ("triton_enable_empty_final_response", True), ("huge", 2**64 - 1), ("", 1), ("binary_data_output", True),
    ):  # fmt: skip
        yield Call(
            f"parameter {name} {value!r}", "ModelInfer", [request(report=True, **{name: value})]
        )
    yield Call(
        "parameter without a value",
        "ModelInfer",
        [
            pb.ModelInferRequest(
                model_name="one",
                inputs=[tensor()],
                raw_input_contents=[FLOATS],
                parameters={"x": pb.InferParameter()},
            )
        ],
    )
    for name, parameters in (
        ("start", {"sequence_id": 9, "sequence_start": True}),
        ("go on", {"sequence_id": 9}),
        ("end", {"sequence_id": 9, "sequence_end": True}),
        ("end again", {"sequence_id": 9, "sequence_end": True}),
        ("without an id", {}),
    ):
        yield Call(f"sequence, {name}", "ModelInfer", [request(model="sequence", **parameters)])


def _streams() -> Iterator[Call]:
    flat = tensor(shape=(2,))
    more = request(flat, model="many", answers=3, id="s")
    yield Call("stream", "ModelStreamInfer", [request(flat, model="many", id="s")])
    yield Call("stream, three answers", "ModelStreamInfer", [more])
    yield Call(
        "stream, no answer", "ModelStreamInfer", [request(flat, model="many", answers=0, id="s")]
    )
    yield Call(
        "stream, no answer, told",
        "ModelStreamInfer",
        [request(flat, model="many", answers=0, id="s", triton_enable_empty_final_response=True)],
    )
    yield Call(
        "stream, two answers, told",
        "ModelStreamInfer",
        [request(flat, model="many", answers=2, id="s", triton_enable_empty_final_response=True)],
    )
    yield Call(
        "stream, told by a number",
        "ModelStreamInfer",
        [request(flat, model="many", id="s", triton_enable_empty_final_response=1)],
    )
    yield Call("stream of a model that answers once", "ModelStreamInfer", [request(id="s")])
    yield Call(
        "stream of a model that answers once, told",
        "ModelStreamInfer",
        [request(id="s", triton_enable_empty_final_response=True)],
    )
    yield Call("stream of nobody", "ModelStreamInfer", [request(model="nobody", id="s")])
    yield Call(
        "stream with a version that is none", "ModelStreamInfer", [request(version="x", id="s")]
    )
    yield Call(
        "stream with a wrong input", "ModelStreamInfer", [request(raw=(FLOATS[:7],), id="s")]
    )
    yield Call("stream that fails", "ModelStreamInfer", [request(fail="oh", id="s")])
    yield Call(
        "stream that goes on after an error",
        "ModelStreamInfer",
        [request(model="nobody", id="s"), request(id="t")],
    )
    yield Call("empty stream", "ModelStreamInfer", [])


def _repository() -> Iterator[Call]:
    for ready in (False, True):
        yield Call(
            f"index, ready {ready}", "RepositoryIndex", [pb.RepositoryIndexRequest(ready=ready)]
        )
    yield Call(
        "index of a repository", "RepositoryIndex", [pb.RepositoryIndexRequest(repository_name="x")]
    )
    value = pb.ModelRepositoryParameter
    for name, model, parameters in (("nobody", "nobody", {}), ("one", "one", {}), ("no name", "", {}), ("one that cannot be", "gone", {}), ("a wrong config", "one", {"config": value(string_param="x")}), ("a config that is no text", "one", {"config": value(int64_param=1)}),
                                    ("a parameter nobody knows", "one", {"x": value(string_param="x")}), ("a file without a config", "one", {"file:1/x": value(bytes_param=b"x")}), ("a file that is text", "one", {"file:1/x": value(string_param="x")})):  # fmt: skip
        yield Call(
            f"load {name}",
            "RepositoryModelLoad",
            [pb.RepositoryModelLoadRequest(model_name=model, parameters=parameters)],
        )
    yield Call(
        "load of a repository",
        "RepositoryModelLoad",
        [pb.RepositoryModelLoadRequest(repository_name="x", model_name="one")],
    )
    for name, model, parameters in (
        ("nobody", "nobody", {}),
        ("dependents", "single", {"unload_dependents": value(bool_param=True)}),
        ("dependents as text", "single", {"unload_dependents": value(string_param="x")}),
        ("a parameter nobody knows", "single", {"x": value(bool_param=True)}),
    ):
        yield Call(
            f"unload {name}",
            "RepositoryModelUnload",
            [pb.RepositoryModelUnloadRequest(model_name=model, parameters=parameters)],
        )
    yield Call(
        "unload of a repository",
        "RepositoryModelUnload",
        [pb.RepositoryModelUnloadRequest(repository_name="x", model_name="one")],
    )


def _settings() -> Iterator[Call]:
    value = pb.TraceSettingRequest.SettingValue
    for name, model, settings in (
        ("nothing", "", {}), ("nothing of one", "one", {}), ("nothing of nobody", "nobody", {}), ("rate", "", {"trace_rate": value(value=["5"])}), ("rate x", "", {"trace_rate": value(value=["x"])}), ("two rates", "", {"trace_rate": value(value=["1", "2"])}), ("cleared rate", "", {"trace_rate": value()}),
        ("count", "one", {"trace_count": value(value=["3"])}), ("count -2", "one", {"trace_count": value(value=["-2"])}), ("cleared count", "one", {"trace_count": value()}), ("frequency", "", {"log_frequency": value(value=["3"])}), ("level off", "", {"trace_level": value(value=["OFF"])}),
        ("level", "", {"trace_level": value(value=["TIMESTAMPS"])}), ("two levels", "", {"trace_level": value(value=["OFF", "TENSORS"])}), ("file", "", {"trace_file": value(value=["x"])}), ("back", "", {"log_frequency": value()}),
    ):  # fmt: skip
        yield Call(
            f"trace: {name}",
            "TraceSetting",
            [pb.TraceSettingRequest(model_name=model, settings=settings)],
        )
    log = pb.LogSettingsRequest.SettingValue
    for name, settings in (("nothing", {}), ("info", {"log_info": log(bool_param=False)}), ("info back", {"log_info": log(bool_param=True)}), ("info as text", {"log_info": log(string_param="x")}), ("file", {"log_file": log(string_param="x")}), ("format", {"log_format": log(string_param="ISO8601")}),
                           ("format back", {"log_format": log(string_param="default")}), ("wrong format", {"log_format": log(string_param="x")}), ("verbose", {"log_verbose_level": log(uint32_param=1)}), ("verbose back", {"log_verbose_level": log(uint32_param=0)}), ("verbose as bool", {"log_verbose_level": log(bool_param=True)})):  # fmt: skip
        yield Call(f"log: {name}", "LogSettings", [pb.LogSettingsRequest(settings=settings)])


def _memory() -> Iterator[Call]:
    yield Call("status of all", "SystemSharedMemoryStatus", [pb.SystemSharedMemoryStatusRequest()])
    yield Call(
        "status of x", "SystemSharedMemoryStatus", [pb.SystemSharedMemoryStatusRequest(name="x")]
    )
    yield Call(
        "register what is not there",
        "SystemSharedMemoryRegister",
        [pb.SystemSharedMemoryRegisterRequest(name="x", key="/nobody-has-this", byte_size=8)],
    )
    yield Call(
        "register without a name",
        "SystemSharedMemoryRegister",
        [pb.SystemSharedMemoryRegisterRequest(key="/nobody-has-this", byte_size=8)],
    )
    yield Call(
        "unregister x",
        "SystemSharedMemoryUnregister",
        [pb.SystemSharedMemoryUnregisterRequest(name="x")],
    )
    yield Call(
        "unregister all", "SystemSharedMemoryUnregister", [pb.SystemSharedMemoryUnregisterRequest()]
    )
    yield Call(
        "status of all of CUDA", "CudaSharedMemoryStatus", [pb.CudaSharedMemoryStatusRequest()]
    )
    yield Call(
        "status of x of CUDA",
        "CudaSharedMemoryStatus",
        [pb.CudaSharedMemoryStatusRequest(name="x")],
    )
    yield Call(
        "register CUDA",
        "CudaSharedMemoryRegister",
        [pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"x" * 64, byte_size=8)],
    )
    yield Call(
        "unregister x of CUDA",
        "CudaSharedMemoryUnregister",
        [pb.CudaSharedMemoryUnregisterRequest(name="x")],
    )
    yield Call(
        "unregister all of CUDA",
        "CudaSharedMemoryUnregister",
        [pb.CudaSharedMemoryUnregisterRequest()],
    )
