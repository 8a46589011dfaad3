"""gRPC calls sent to both NVIDIA's frontend and the native one, in this order: valid and invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from support.frontend.grpc.requests import (
    FLOATS,
    STRINGS,
    Call,
    call,
    infer,
    output,
    request,
    stream,
    tensor,
)


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
    yield call("live", pb.ServerLiveRequest())
    yield call("ready", pb.ServerReadyRequest())
    yield call("metadata", pb.ServerMetadataRequest())
    versions = ("", "1", "2", "x", "0", "-1", "-2", "9" * 30, "1x")
    for name, version in (
        *(("one", version) for version in versions),
        *((name, "") for name in ("nobody", "gone", "", "types")),
    ):
        yield call(f"{name!r} {version!r} ready", pb.ModelReadyRequest(name=name, version=version))
        yield call(
            f"{name!r} {version!r} metadata", pb.ModelMetadataRequest(name=name, version=version)
        )
        yield call(
            f"{name!r} {version!r} config", pb.ModelConfigRequest(name=name, version=version)
        )
        if name != "":
            yield infer(f"{name!r} {version!r} infer", model=name, version=version)
    for name, version in (("nobody", ""), ("one", "7"), ("one", "x")):
        yield call(
            f"{name!r} {version!r} statistics",
            pb.ModelStatisticsRequest(name=name, version=version),
        )


def _inference() -> Iterator[Call]:
    yield infer("inference")
    yield infer("inference with an id", id="\u00e4 7")
    yield infer("of a decoupled model", model="many")
    yield infer("that fails", fail="not \u00e4 today")
    yield infer("without a model", model="")
    yield call("no input", pb.ModelInferRequest(model_name="one"))
    yield call(
        "no input, but raw contents",
        pb.ModelInferRequest(model_name="one", raw_input_contents=[FLOATS]),
    )
    for name, given in (
        ("unknown input", tensor("INPUT9")), ("no name", tensor("")), ("unknown type", tensor(datatype="FP99")), ("no type", tensor(datatype="")), ("another type", tensor(datatype="INT32")),
        ("no shape", tensor(shape=())), ("short shape", tensor(shape=(2,))), ("long shape", tensor(shape=(1, 1, 2))), ("negative shape", tensor(shape=(-1, 2))), ("huge shape", tensor(shape=(1, 2**62))),
        ("larger shape", tensor(shape=(1, 3))), ("smaller shape", tensor(shape=(1, 1))), ("batch of 9", tensor(shape=(9, 1))), ("empty shape", tensor(shape=(0, 2))), ("a parameter", tensor(x=1)), ("binary_data_size", tensor(binary_data_size=8)),
    ):  # fmt: skip
        yield infer(f"input with {name}", given)
    for name, raw in (
        ("none", ()),
        ("two", (FLOATS, FLOATS)),
        ("short", (FLOATS[:7],)),
        ("long", (FLOATS + b"x",)),
        ("empty", (b"",)),
    ):
        yield infer(f"raw contents: {name}", raw=raw)
    yield infer("the same input twice", tensor(), tensor(), raw=(FLOATS, FLOATS))
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
        yield infer(f"strings: {name}", tensor(), text, raw=(FLOATS, data))
    for name, wanted in (("one", [output()]), ("unknown", [output("OUTPUT9")]), ("twice", [output()] * 2), ("no name", [output("")]), ("classes", [output(classification=2)]), ("many classes", [output(classification=9)]), ("no classes", [output(classification=0)]),
                         ("negative classes", [output(classification=-1)]), ("classes as text", [output(classification="1")]), ("a parameter", [output(x=1)]), ("binary_data", [output(binary_data=True)]),
                         ("a region", [output(shared_memory_region="x", shared_memory_byte_size=8)]), ("a region without a size", [output(shared_memory_region="x")]), ("a region as number", [output(shared_memory_region=5, shared_memory_byte_size=8)]), ("a size without a region", [output(shared_memory_byte_size=8)])):  # fmt: skip
        yield infer(f"outputs: {name}", outputs=wanted)
    yield infer(
        "input in a region", tensor(shared_memory_region="x", shared_memory_byte_size=8), raw=()
    )
    yield infer("input in a region without a size", tensor(shared_memory_region="x"), raw=())
    yield infer(
        "input in a region, and raw contents",
        tensor(shared_memory_region="x", shared_memory_byte_size=8),
    )
    yield infer("classes of a batch", tensor(shape=(2, 1)), outputs=[output(classification=1)])


def _typed(name: str, datatype: str, contents: Any = None, *, raw: Sequence[bytes] = ()) -> Call:
    """Return an inference with two values of this type."""
    return infer(name, tensor(f"INPUT{datatype}", datatype, (2,), contents), model="types", raw=raw)


def _contents() -> Iterator[Call]:
    values: dict[str, tuple[str, Sequence[Any]]] = {
        "BOOL": ("bool_contents", [True, False]), "INT8": ("int_contents", [-128, 127]), "INT16": ("int_contents", [-5, 5]), "INT32": ("int_contents", [-(2**31), 2**31 - 1]), "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
        "UINT8": ("uint_contents", [0, 255]), "UINT16": ("uint_contents", [0, 65535]), "UINT32": ("uint_contents", [0, 2**32 - 1]), "UINT64": ("uint64_contents", [0, 2**64 - 1]),
        "FP32": ("fp32_contents", [1.5, -2.0]), "FP64": ("fp64_contents", [0.1, -1e300]), "BYTES": ("bytes_contents", [b"a", b"\xff\0"]),
    }  # fmt: skip
    for datatype, (name, data) in values.items():
        for count in (2, 1, 0):
            contents = pb.InferTensorContents(**{name: data[:count]})
            yield _typed(f"contents of {datatype}, {count}", datatype, contents)
        wrong = (
            pb.InferTensorContents(fp32_contents=[1.0, 2.0])
            if datatype != "FP32"
            else pb.InferTensorContents(int_contents=[1, 2])
        )
        yield _typed(f"contents of another type for {datatype}", datatype, wrong)
    over = pb.InferTensorContents(int_contents=[300, -300])
    yield _typed("contents that INT8 cannot hold", "INT8", over)
    over = pb.InferTensorContents(uint_contents=[300, 70000])
    yield _typed("contents that UINT8 cannot hold", "UINT8", over)
    for datatype in ("FP16", "BF16"):
        contents = pb.InferTensorContents(fp32_contents=[1.0, 2.0])
        yield _typed(f"contents of {datatype}", datatype, contents)
        yield _typed(f"raw contents of {datatype}", datatype, raw=[b"\0<\0@"])
    both = tensor(contents=pb.InferTensorContents(fp32_contents=[1.0, 2.0]))
    yield infer("contents, and raw ones", both)
    yield infer(
        "contents of two types",
        tensor(contents=pb.InferTensorContents(fp32_contents=[1.0, 2.0], int_contents=[1])),
        raw=(),
    )


def _parameters() -> Iterator[Call]:
    value: Any
    parameters: Any
    for name, value in (
        ("text", "\u00e4"), ("number", 5), ("negative", -5), ("double", 2.5), ("yes", True), ("sequence_id", 5), ("sequence_id", "five"), ("sequence_id", -5), ("sequence_id", True), ("sequence_id", 2**64 - 1), ("sequence_id", 1.5), ("sequence_id", ""),
        ("sequence_start", True), ("sequence_start", 1), ("sequence_end", True), ("sequence_end", "x"), ("priority", 1), ("priority", -1), ("priority", "1"), ("priority", 2**64 - 1), ("priority", True), ("timeout", 60000000), ("timeout", "x"), ("timeout", -1), ("timeout", 2**64 - 1),
        ("triton_x", 1), ("triton_enable_empty_final_response", True), ("huge", 2**64 - 1), ("", 1), ("binary_data_output", True),
    ):  # fmt: skip
        yield infer(f"parameter {name} {value!r}", report=True, **{name: value})
    yield call(
        "parameter without a value",
        pb.ModelInferRequest(
            model_name="one",
            inputs=[tensor()],
            raw_input_contents=[FLOATS],
            parameters={"x": pb.InferParameter()},
        ),
    )
    for name, parameters in (
        ("start", {"sequence_id": 9, "sequence_start": True}),
        ("go on", {"sequence_id": 9}),
        ("end", {"sequence_id": 9, "sequence_end": True}),
        ("end again", {"sequence_id": 9, "sequence_end": True}),
        ("without an id", {}),
    ):
        yield infer(f"sequence, {name}", model="sequence", **parameters)


def _streams() -> Iterator[Call]:
    flat = tensor(shape=(2,))
    more = request(flat, model="many", answers=3, id="s")
    yield stream("stream", request(flat, model="many", id="s"))
    yield stream("stream, three answers", more)
    yield stream("stream, no answer", request(flat, model="many", answers=0, id="s"))
    yield stream(
        "stream, no answer, told",
        request(flat, model="many", answers=0, id="s", triton_enable_empty_final_response=True),
    )
    yield stream(
        "stream, two answers, told",
        request(flat, model="many", answers=2, id="s", triton_enable_empty_final_response=True),
    )
    yield stream(
        "stream, told by a number",
        request(flat, model="many", id="s", triton_enable_empty_final_response=1),
    )
    yield stream("stream of a model that answers once", request(id="s"))
    yield stream(
        "stream of a model that answers once, told",
        request(id="s", triton_enable_empty_final_response=True),
    )
    yield stream("stream of nobody", request(model="nobody", id="s"))
    yield stream("stream with a version that is none", request(version="x", id="s"))
    yield stream("stream with a wrong input", request(raw=(FLOATS[:7],), id="s"))
    yield stream("stream that fails", request(fail="oh", id="s"))
    yield stream(
        "stream that goes on after an error", request(model="nobody", id="s"), request(id="t")
    )
    yield stream("empty stream")


def _repository() -> Iterator[Call]:
    for ready in (False, True):
        yield call(f"index, ready {ready}", pb.RepositoryIndexRequest(ready=ready))
    yield call("index of a repository", pb.RepositoryIndexRequest(repository_name="x"))
    value = pb.ModelRepositoryParameter
    for name, model, parameters in (("nobody", "nobody", {}), ("one", "one", {}), ("no name", "", {}), ("one that cannot be", "gone", {}), ("a wrong config", "one", {"config": value(string_param="x")}), ("a config that is no text", "one", {"config": value(int64_param=1)}),
                                    ("a parameter nobody knows", "one", {"x": value(string_param="x")}), ("a file without a config", "one", {"file:1/x": value(bytes_param=b"x")}), ("a file that is text", "one", {"file:1/x": value(string_param="x")})):  # fmt: skip
        yield call(
            f"load {name}", pb.RepositoryModelLoadRequest(model_name=model, parameters=parameters)
        )
    yield call(
        "load of a repository", pb.RepositoryModelLoadRequest(repository_name="x", model_name="one")
    )
    for name, model, parameters in (
        ("nobody", "nobody", {}),
        ("dependents", "single", {"unload_dependents": value(bool_param=True)}),
        ("dependents as text", "single", {"unload_dependents": value(string_param="x")}),
        ("a parameter nobody knows", "single", {"x": value(bool_param=True)}),
    ):
        yield call(
            f"unload {name}",
            pb.RepositoryModelUnloadRequest(model_name=model, parameters=parameters),
        )
    yield call(
        "unload of a repository",
        pb.RepositoryModelUnloadRequest(repository_name="x", model_name="one"),
    )


def _settings() -> Iterator[Call]:
    value = pb.TraceSettingRequest.SettingValue
    for name, model, settings in (
        ("nothing", "", {}), ("nothing of one", "one", {}), ("nothing of nobody", "nobody", {}), ("rate", "", {"trace_rate": value(value=["5"])}), ("rate x", "", {"trace_rate": value(value=["x"])}), ("two rates", "", {"trace_rate": value(value=["1", "2"])}), ("cleared rate", "", {"trace_rate": value()}),
        ("count", "one", {"trace_count": value(value=["3"])}), ("count -2", "one", {"trace_count": value(value=["-2"])}), ("cleared count", "one", {"trace_count": value()}), ("frequency", "", {"log_frequency": value(value=["3"])}), ("level off", "", {"trace_level": value(value=["OFF"])}),
        ("level", "", {"trace_level": value(value=["TIMESTAMPS"])}), ("two levels", "", {"trace_level": value(value=["OFF", "TENSORS"])}), ("file", "", {"trace_file": value(value=["x"])}), ("back", "", {"log_frequency": value()}),
    ):  # fmt: skip
        yield call(f"trace: {name}", pb.TraceSettingRequest(model_name=model, settings=settings))
    log = pb.LogSettingsRequest.SettingValue
    for name, settings in (("nothing", {}), ("info", {"log_info": log(bool_param=False)}), ("info back", {"log_info": log(bool_param=True)}), ("info as text", {"log_info": log(string_param="x")}), ("file", {"log_file": log(string_param="x")}), ("format", {"log_format": log(string_param="ISO8601")}),
                           ("format back", {"log_format": log(string_param="default")}), ("wrong format", {"log_format": log(string_param="x")}), ("verbose", {"log_verbose_level": log(uint32_param=1)}), ("verbose back", {"log_verbose_level": log(uint32_param=0)}), ("verbose as bool", {"log_verbose_level": log(bool_param=True)})):  # fmt: skip
        yield call(f"log: {name}", pb.LogSettingsRequest(settings=settings))


def _memory() -> Iterator[Call]:
    yield call("status of all", pb.SystemSharedMemoryStatusRequest())
    yield call("status of x", pb.SystemSharedMemoryStatusRequest(name="x"))
    yield call(
        "register what is not there",
        pb.SystemSharedMemoryRegisterRequest(name="x", key="/nobody-has-this", byte_size=8),
    )
    yield call(
        "register without a name",
        pb.SystemSharedMemoryRegisterRequest(key="/nobody-has-this", byte_size=8),
    )
    yield call("unregister x", pb.SystemSharedMemoryUnregisterRequest(name="x"))
    yield call("unregister all", pb.SystemSharedMemoryUnregisterRequest())
    yield call("status of all of CUDA", pb.CudaSharedMemoryStatusRequest())
    yield call("status of x of CUDA", pb.CudaSharedMemoryStatusRequest(name="x"))
    yield call(
        "register CUDA",
        pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"x" * 64, byte_size=8),
    )
    yield call("unregister x of CUDA", pb.CudaSharedMemoryUnregisterRequest(name="x"))
    yield call("unregister all of CUDA", pb.CudaSharedMemoryUnregisterRequest())
