"""Calls of the frontend under sanitizers, with a core that behaves as its models' names say (fake_core/)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.frontend.c_programs import ADDRESSES, THREADS
from support.frontend.calls import Run, program

ONE = ("input=IN:FP32:2", "data=0000803f00000040", "start", "wait")
ANSWERED = (
    "answer final model={0} id= version=1\n  output OUTIN FP32 [2] 8 0000803f00000040\nrunning 0\n"
)
ENDED = "running 0\n"


@pytest.mark.parametrize("model", ["echo", "thread", "early"])
def test_a_call_is_answered_whenever_its_request_is_released(calls: Run, model: str) -> None:
    assert calls(f"model={model}", *ONE) == ANSWERED.format(model)


def test_call_memory_is_reused(calls: Run) -> None:
    said = calls(*("model=echo", *ONE) * 20)
    assert said.count("output OUTIN FP32 [2] 8 0000803f00000040") == 20


def test_idle_pooled_calls_are_freed(calls: Run) -> None:
    said = calls("rush=100", "look", "rush=20", "look", "look", "look").splitlines()
    # What was needed since the last look stays; in the end, a few stay that nobody needs.
    assert said[:-1] == ["kept 100 more", "kept 20 more", "kept 8", "kept 8"]


def test_a_pool_keeps_a_limited_number_of_calls(calls: Run) -> None:
    assert calls("rush=300", "look").startswith("kept 256 more\n")


@pytest.mark.parametrize(("answers", "given"), [("0", 0), ("3", 3)])
def test_a_model_answers_any_number_of_times(calls: Run, answers: str, given: int) -> None:
    lines = calls("model=many", f"param=answers:i:{answers}", *ONE).splitlines()
    assert lines.count("answer model=many id= version=1") == given
    assert lines[-2:] == ["answer final empty model=many id= version=-1", "running 0"]


def test_responses_of_several_threads_are_serialized(calls: Run) -> None:
    lines = calls("model=racing", *ONE).splitlines()
    assert lines.count("answer model=racing id= version=1") == 3
    assert lines[-2] == "answer final empty model=racing id= version=-1"


def test_a_cancelled_call_is_cancelled_in_the_core(calls: Run) -> None:
    said = calls("model=held", "input=IN:FP32:1", "data=00000000", "start", "cancel", "wait")
    assert "problem 499 cancelled" in said


def test_a_call_that_is_cancelled_before_it_starts_is_cancelled(calls: Run) -> None:
    said = calls("model=held", "input=IN:FP32:1", "data=00000000", "cancel", "start", "wait")
    assert "problem 499 cancelled" in said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("model=refused", *ONE), "problem 503 the queue is full"),
        (("model=failing", *ONE), "  problem 500 not today"),
        (("model=short", *ONE), "  problem 500 output 'OUTIN' of model 'short' has 8 bytes, fewer than its shape requires"),
        (
            ("model=huge", *ONE),
            "  problem 503 output 'OUTIN' has 1099511627776 bytes, but "
            "all outputs of a request may have only 1048576 (output_bytes)",
        ),
        (("model=nobody",), "problem 404 Request for unknown model"),
        (("model=echo/2",), "problem 404 Request for unknown model"),
        (("model=echo\xff",), "problem 400 the model name is not valid UTF-8, or contains a NUL"),
        (("model=" + "x" * 1025,), "problem 400 the model name has 1025 bytes, and at most 1024 are allowed"),
    ],
)  # fmt: skip
def test_requests_that_the_core_refuses(
    calls: Run, arguments: tuple[str, ...], problem: str
) -> None:
    said = calls(*(argument.encode("latin-1") for argument in arguments))
    assert problem in said.splitlines()
    assert said.endswith(ENDED)


def test_invalid_text_of_a_model_is_repaired(calls: Run) -> None:
    said = calls("model=odd", *ONE)
    assert "  output ?IN FP32 [2] 8 0000803f00000040\n  parameter odd '?(?'\n" in said


@pytest.mark.parametrize("version", ["x", "-2", "1.0", "99999999999999999999", " 1"])
def test_invalid_versions_are_refused(calls: Run, version: str) -> None:
    assert "version should be an integral value > 0" in calls(f"model=echo/{version}")


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        (("trace=x-request-id:h-1", "trace=traceparent:00-abc-def-01"), "h-1"),
        (("trace=traceparent:00-abc-def-01", "trace=X-Request-Id:h-1"), "h-1"),
        (("trace=traceparent:00-abc-def-01",), "abc"),
        (("id=mine", "trace=x-request-id:h-1"), "mine"),
        (("id=", "trace=x-request-id:h-1"), "h-1"),
        (("trace=traceparent:00-abc-def",), "<id_unknown>"),
        (("trace=x-request-id:",), "<id_unknown>"),
        ((f"trace=x-request-id:{'x' * 255}",), "x" * 255),
        ((f"trace=x-request-id:{'x' * 256}",), "<id_unknown>"),
        ((b"trace=x-request-id:\xff",), "<id_unknown>"),
        ((f"trace=traceparent:{'x' * 20}-{'y' * 100}-z-01",), "y" * 100),
    ],
)  # fmt: skip
def test_a_request_without_an_id_gets_that_of_its_headers(
    calls: Run, headers: tuple[str, ...], shown: str
) -> None:
    """It appears in errors, including those of models; a response has only the id that the client gave its request."""
    said = calls("model=echo", *headers, "input=IN:FP32:2", "data=00", "start")
    assert f"[request id: {shown}] input byte size" in said
    core_s = "" if shown == "<id_unknown>" else shown
    assert f"problem 500 not today{core_s}" in calls("model=failing", *headers, *ONE)
    answered = calls("model=echo", *headers, *ONE)
    assert f" id={'mine' if shown == 'mine' else ''} " in answered


@pytest.mark.parametrize("model", ["echo", "refused", "unfit"])
def test_the_trace_of_each_request_is_released(calls: Run, tmp_path: Path, model: str) -> None:
    """Including that of a request refused by the core, which may or may not have taken the trace: no memory leaks."""
    path = tmp_path / "traces.json"
    said = calls(f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1",
                 f"model={model}", *ONE)  # fmt: skip
    assert said.endswith(ENDED)
    assert path.read_text().count("HTTP_RECV_START") == 1


SIZES = "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'echo'. "
BYTES = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("input=IN:FP32:2", "data=0000803f"), SIZES + "Expected 8, got 4"),
        (("input=IN:FP32:2", "data=0000803f", "data=000000000000"), SIZES + "Expected 8, got 10"),
        (("input=IN:FP32:2",), SIZES + "Expected 8, got 0"),
        (("input=IN:FP32:0", "data=00"), SIZES + "Expected 0, got 1"),
        (("input=IN:FP32:-1", "data=00"), "the shape of input 'IN' has a negative size: -1"),
        (("input=IN:FP32:4611686018427387904",), "the shape of input 'IN' has too many elements"),
        (("input=IN:INT8:9223372036854775807,2",), "the shape of input 'IN' has too many elements"),
        (("input=IN:INT8:4294967296,4294967296",), "the shape of input 'IN' has too many elements"),
        (("input=IN:INT8:" + ",".join("1" * 65),), "input 'IN' has 65 dimensions; at most 64 are allowed"),
        (("input=IN\xc0:INT8:1",), "the name of an input is not valid UTF-8, or contains a NUL"),
        (("input=IN:INT8:1", "data=00", "input=IN:INT8:1"), "input already exists in request"),
        (
            tuple(part for i in range(9) for part in (f"input=I{i}:INT8:1", "data=00")),
            "the request has more than 8 inputs",
        ),
        (
            ("input=IN:BYTES:1", "data=010000"),
            BYTES + "incomplete string length indicator for inference input 'IN' for model 'echo', "
            "expecting 4 bytes but only 3 bytes available. "
            "Please make sure the string length indicator is in one buffer.",
        ),
        (
            ("input=IN:BYTES:1", "data=0200000041"),
            BYTES + "incomplete string data for inference input 'IN', "
            "expecting string of length 2 but only 1 bytes available",
        ),
        (
            ("input=IN:BYTES:1", "data=ffffffff41"),
            BYTES + "incomplete string data for inference input 'IN', "
            "expecting string of length 4294967295 but only 1 bytes available",
        ),
        (
            ("input=IN:BYTES:3", "data=0100000041", "data=00000000"),
            BYTES + "expected 3 string elements for inference input 'IN' for model 'echo', got 2",
        ),
    ],
)  # fmt: skip
def test_invalid_inputs_are_refused(calls: Run, arguments: tuple[str, ...], problem: str) -> None:
    said = calls("model=echo", *(one.encode("latin-1") for one in arguments), "start", "wait")
    assert any(line.split(" ", 2)[2] == problem for line in said.splitlines() if line[:1] == "p"), (
        said
    )
    assert "answer" not in said


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("input=IN:FP32:0,5", "data="), "OUTIN FP32 [0,5] 0 "),
        (("input=IN:INT8:9223372036854775807,0",), "OUTIN INT8 [9223372036854775807,0] 0 "),
        (("input=IN:FP32:", "data=0000803f"), "OUTIN FP32 [] 4 0000803f"),
        (("input=IN:BYTES:2", "data=0100000041", "data=00000000"), "OUTIN BYTES [2] 9 010000004100000000"),
        (("raw=0102",), "OUTraw_input UINT8 [1] 2 0102"),
        (("input=IN:BF16:1", "data=803f"), "OUTIN BF16 [1] 2 803f"),
    ],
)  # fmt: skip
def test_valid_inputs_are_accepted(calls: Run, arguments: tuple[str, ...], output: str) -> None:
    said = calls("model=echo", *arguments, "start", "wait")
    assert f"  output {output}" in said.splitlines(), said


@pytest.mark.parametrize(
    ("parameter", "problem"),
    [
        ("triton_x:i:1", "parameter keys starting with 'triton_' are reserved for Triton usage "
         "and should not be specified."),
        ("sequence_start:i:1", "parameter 'sequence_start' is a whole number, but must be a boolean"),
        ("sequence_id:b:true", "parameter 'sequence_id' is a boolean, but must be a whole number or a string"),
        ("priority:s:1", "parameter 'priority' is a string, but must be a whole number that is not negative"),
        ("timeout:i:-1", "parameter 'timeout' is a whole number, but must be a whole number that is not negative"),
        ("timeout:d:1", "parameter 'timeout' is a double, but must be a whole number that is not negative"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused(calls: Run, parameter: str, problem: str) -> None:
    assert f"problem 400 {problem}\n" in calls("model=echo", f"param={parameter}")


def test_too_many_parameters_are_refused(calls: Run) -> None:
    said = calls("model=echo", *(f"param=p{i}:i:1" for i in range(9)))
    assert "problem 413 the request has more than 8 parameters\n" in said


@pytest.mark.parametrize(
    ("shape", "data", "classes", "output"),
    [
        ("1,3", "0000803f0000404000000040", 2,
         [b"3.000000:1:dog", b"2.000000:2"]),
        ("1,2", "0000803f0000803f", 5, [b"1.000000:0:cat", b"1.000000:1:dog"]),
        ("2,2", "0000803f000000400000404000008040", 1, [b"2.000000:1:dog", b"4.000000:1:dog"]),
        ("1,2", "0000c07f000080ff", 2, [b"-inf:1:dog", b"nan:0:cat"]),
    ],
)  # fmt: skip
def test_classification(
    calls: Run, shape: str, data: str, classes: int, output: list[bytes]
) -> None:
    said = calls("model=echo", f"input=IN:FP32:{shape}", f"data={data}", "output=OUTIN", f"classes={classes}",
                 "start", "wait")  # fmt: skip
    bytes_ = b"".join(len(one).to_bytes(4, "little") + one for one in output)
    dims = f"{shape[0]},{len(output) // int(shape[0])}"
    assert f"  output OUTIN BYTES [{dims}] {len(bytes_)} {bytes_.hex()}" in said.splitlines(), said


def test_classification_of_many_empty_items_is_cheap(
    calls: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without values it takes neither time nor memory, however many rows the shape declares."""
    monkeypatch.setenv("ASAN_OPTIONS", "hard_rss_limit_mb=1000")
    said = calls(
        "model=echo", "input=IN:FP32:1000000000000,0", "output=OUTIN", "classes=1", "start", "wait"
    )
    assert "  output OUTIN BYTES [1000000000000,0] 0 " in said.splitlines()


def test_types_without_an_order_cannot_be_classified(calls: Run) -> None:
    said = calls(
        "model=echo", "input=IN:BOOL:1,1", "data=01", "output=OUTIN", "classes=1", "start", "wait"
    )
    assert (
        "problem 400 class result not available for output due to unsupported type 'BOOL'" in said
    )


@pytest.fixture
def key() -> Iterator[str]:
    """A file in /dev/shm with 8192 bytes, of which those from 4096 on have known values."""
    path = Path("/dev/shm", f"frontend-calls-{os.getpid()}")
    path.write_bytes(bytes(4096) + b"\0\0\x80?\0\0\0@" + bytes(4088))
    yield path.name
    path.unlink()


def test_inputs_and_outputs_in_shared_memory(calls: Run, key: str) -> None:
    said = calls(f"register=r:/{key}:4090:100", "regions=", "model=echo", "input=IN:FP32:2", "region=r:6:8",
                 "output=OUTIN", "out_region=r:50:16", "start", "wait", "unregister=r", "regions=")  # fmt: skip
    lines = said.splitlines()
    assert lines[0] == f"region r /{key} 4090 100"
    assert "  output OUTIN FP32 [2] 8 in region " in lines
    assert lines[-1] == "running 0"
    assert Path("/dev/shm", key).read_bytes()[4140:4148] == b"\0\0\x80?\0\0\0@"


def test_many_watchers_ask_the_core_once(calls: Run) -> None:
    """The core goes through all models each time."""
    assert {"looks fewer", "held 0"} <= set(calls("watch=1000").splitlines())


def test_a_region_can_be_unregistered_while_it_is_used(calls: Run, key: str) -> None:
    said = calls(f"register=r:/{key}:4096:8", "model=held", "input=IN:FP32:2", "region=r:0:8", "start",
                 "unregister=r", "cancel", "wait", "regions=r")  # fmt: skip
    assert "Unable to find system shared memory region: 'r'" in said


TRUNCATED = "problem 400 shared memory region 'r' was truncated while it was registered"
READS = ("input=IN:FP32:2", "region=r:0:8", "start", "wait")
WRITES = (
    "input=IN:FP32:2",
    "data=0000803f00000040",
    "output=OUTIN",
    "out_region=r:8:16",
    "start",
    "wait",
)
#: A page that is gone, and the rest of one, which still reads as zeros.
SHORTER = (0, 4100)


@pytest.mark.parametrize("size", SHORTER)
@pytest.mark.parametrize(
    "use", [READS, WRITES, ("input=IN:BYTES:2", "region=r:64:8", "start", "wait")]
)
def test_a_region_that_was_truncated_is_broken_until_it_is_registered_again(
    calls: Run, key: str, use: tuple[str, ...], size: int
) -> None:
    path, register = f"/dev/shm/{key}", f"register=r:/{key}:4096:4096"
    said = calls(
        register, "model=echo", *READS, f"resize={size}:{path}", "model=echo", *use,
        "model=echo", f"resize=8192:{path}", *use,  # whole again, but what was in it is lost
        "model=echo", "unregister=r", register, *READS,
    ).splitlines()  # fmt: skip
    assert [line for line in said if "problem" in line] == [
        line for line in said if TRUNCATED in line
    ]
    assert sum(TRUNCATED in line for line in said) == 2
    answers = [line for line in said if "output OUTIN" in line]
    assert answers == [
        "  output OUTIN FP32 [2] 8 0000803f00000040",
        f"  output OUTIN FP32 [2] 8 {'0000803f' if size else '00000000'}00000000",
    ]


@pytest.mark.parametrize("size", SHORTER)
@pytest.mark.parametrize("use", [READS, WRITES])
def test_a_request_whose_region_is_truncated_while_it_is_served_fails(
    calls: Run, key: str, use: tuple[str, ...], size: int
) -> None:
    """The file shrinks while the model responds: it may have read zeros, or its output is lost."""
    *before, start, wait = use
    said = calls(
        f"register=r:/{key}:4096:4096", "model=late", *before, start, f"resize={size}:/dev/shm/{key}", "cancel", wait
    )  # fmt: skip
    assert f"  {TRUNCATED}" in said
    assert "output" not in said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("register=r:/{key}:0:8193",), "problem 400 failed to register shared memory region 'r'"),
        (("register=r:/{key}:18446744073709551615:8",), "problem 400 failed to register shared memory region 'r'"),
        (("register=r:/{key}:0:0",), "problem 400 shared memory region 'r' must have at least one byte"),
        (("register=r:/{key}.gone:0:8",), "Unable to open shared memory region"),
        (("register=r:../../etc/passwd:0:8",), "Unable to open shared memory region"),
        (("register=r:/..:0:8",), "Unable to open shared memory region"),
        (("register=r::0:8",), "the key of a shared memory region must be 1 to 255 bytes"),
        (("register=:/{key}:0:8",), "the name of a shared memory region must be 1 to 1024 bytes"),
        (("register=r:/triton_python_backend_shm_region_1:0:8",), "problem 400 shared memory key '/triton_python"),
        (("register=r:pytriton-1-ab-x:0:8",), "problem 400 shared memory key 'pytriton-1-ab-x' is refused: names"),
        (("register=r:/{key}:0:8", "register=r:/{key}:0:8"), "problem 409 shared memory region 'r' already in manager"),
        (("register=r:/{key}:0:8", "register=s:/{key}:0:8", "register=t:/{key}:0:8"),
         "problem 429 2 shared memory regions are registered, which is the maximum (regions)"),
        (("register=r:/{key}:0:8", "register=s:/{key}:0:8", "cuda=t"),
         "problem 429 2 shared memory regions are registered, which is the maximum (regions)"),
        (("regions=r",), "problem 404 Unable to find system shared memory region: 'r'"),
        (("model=echo", "input=IN:INT8:1", "region=r:0:1"), "problem 404 Unable to find shared memory region: 'r'"),
        (("register=r:/{key}:0:8", "model=echo", "input=IN:INT8:1", "region=r:8:1"), "Invalid offset + byte size"),
        (("register=r:/{key}:0:8", "model=echo", "input=IN:INT8:1", "region=r:1:18446744073709551615"),
         "Invalid offset + byte size"),
        (("register=r:/{key}:0:8", "model=echo", *ONE[:2], "output=OUTIN", "out_region=r:0:7", "start", "wait"),
         "problem 500 shared memory size specified with the request for output 'OUTIN' (7 bytes) "
         "should be at least 8 bytes to hold the results"),
        (("register=r:/{key}:0:8", "model=echo", *ONE[:2], "output=OUTIN", "classes=1", "out_region=r:0:8"),
         "problem 400 shared memory and classification cannot be combined"),
        (("model=echo", "cuda=r"), "problem 501 CUDA shared memory needs CUDA's runtime and driver"),
    ],
)  # fmt: skip
def test_invalid_regions_are_refused(
    calls: Run, key: str, arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in calls(*(argument.format(key=key) for argument in arguments))


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--nope=1", 'Triton\'s core has no option "nope"'),
        ("--log-info=maybe", 'option log-info is "maybe", but must be true or false'),
        ("--exit-timeout-secs=-1", 'option exit-timeout-secs is "-1", but must be a whole number in '
         "the allowed range"),
        ("--model-control-mode=x", 'option model-control-mode is "x", but must be "none", "poll" or "explicit"'),
        ("--host-policy=a=b", 'option host-policy is "a=b", but must be NAME,SETTING=VALUE'),
        ("--cuda-memory-pool-byte-size=5", 'option cuda-memory-pool-byte-size is "5", but must be DEVICE:BYTES'),
        ("--rate-limit-resource=x", 'option rate-limit-resource is "x", but must be NAME:COUNT or '
         "NAME:COUNT:DEVICE"),
        ("--trace-config=level=x", "there is no trace level 'x', only OFF, TIMESTAMPS and TENSORS"),
        ("--trace-config=level=TIMESTAMPS", "Attempting to set invalid trace setting :trace file name is not given"),
        ("--trace-config=opentelemetry,nope=1", "trace-config: there is no setting 'nope' of mode opentelemetry"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(calls: Run, option: str, problem: str) -> None:
    assert f"problem 400 {problem}\n" in calls(option, code=1)


@pytest.mark.parametrize("sanitizers", [ADDRESSES, THREADS], ids=["addresses", "threads"])
def test_every_call_ends_exactly_once(tmp_path: Path, sanitizers: tuple[str, ...]) -> None:
    run = program("stress", tmp_path, sanitizers)
    # One in nine is for the model that refuses. Combinations of model, size and cancellation recur after 315.
    assert run("1800") == "finals 1600 refused 200 running 0\n"


@pytest.mark.parametrize(
    "name",
    ["sequence_id", "Sequence_Start", "sequence_end", "priority", "Timeout", "triton_anything"],
)
def test_a_header_with_a_reserved_name_is_not_forwarded(calls: Run, name: str) -> None:
    said = calls("model=echo", f"header={name}:1", *ONE)
    assert f"problem 400 header '{name}' cannot be forwarded" in said
    assert "answer" not in said
