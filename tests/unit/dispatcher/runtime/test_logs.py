"""The log: the daemon's records and its children's output, in rotated files."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytriton._host.log_files import rotated, tail
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.log_lines import MAX_LINE_LENGTH, encoded, record_of
from pytriton.dispatcher.runtime import logs


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RuntimeDir]:
    """A runtime directory with an open log; `open_log` opens one with other settings instead."""
    rundir = RuntimeDir(tmp_path / "r")
    rundir.create()
    open_log(rundir)
    yield rundir
    logs.close()
    logs.set_triton_log_settings(None)


def open_log(rundir: RuntimeDir, **settings: Any) -> None:
    logs.configure(DaemonConfig(**{"log_format": "none", **settings}), rundir.logs)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tail(path, 10_000)]


def logged(rundir: RuntimeDir, line: bytes, **labels: Any) -> dict[str, Any]:
    """Return the only record made of a worker's line."""
    before = len(records(rundir.log_file()))
    logs.log_child_line(logs.child_logger("worker", **labels), line)
    (record,) = records(rundir.log_file())[before:]
    return record


def test_a_record_is_one_json_line_with_time_and_level(rundir: RuntimeDir) -> None:
    structlog.get_logger("any").warning("two\nlines", path=Path("/x"), number=3)
    (line,) = tail(rundir.log_file(), 10)
    record = json.loads(line)
    assert line.startswith('{"timestamp": "2')
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "level": "warning", "event": "two\nlines", "path": "PosixPath('/x')", "number": 3,
    }  # fmt: skip


def test_records_below_the_level_are_dropped(rundir: RuntimeDir) -> None:
    open_log(rundir, log_level="warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert [record["event"] for record in records(rundir.log_file())] == ["loud"]


def test_an_exception_is_logged_as_text(rundir: RuntimeDir) -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        structlog.get_logger().exception("bad")
    (record,) = records(rundir.log_file())
    assert record["exception"].endswith("KeyError: 'lost'")


def test_standard_library_records_are_included(rundir: RuntimeDir) -> None:
    logging.getLogger("asyncio").error("task %s failed", 7)
    odd = logging.makeLogRecord({"msg": "%d", "args": ("no number",), "levelname": "ODD"})
    logging.getLogger().handlers[-1].handle(odd)  # ours alone: pytest's would raise
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    first, second, third = records(rundir.log_file())
    assert (first["event"], first["level"], first["logger"]) == (
        "task 7 failed",
        "error",
        "asyncio",
    )
    assert (second["event"], second["level"]) == ("'%d'", "info")
    assert "UserWarning: old" in third["event"]


# ── standard error ───────────────────────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log_format", "stream", "looks_like"),
    [
        ("auto", io.StringIO, "json"),
        ("auto", Terminal, "colours"),
        ("console", io.StringIO, "plain"),
        ("json", Terminal, "json"),
        ("none", Terminal, "nothing"),
    ],
)
def test_log_format_determines_the_form_of_standard_error(
    log_format: str,
    stream: type[io.StringIO],
    looks_like: str,
    rundir: RuntimeDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standard_error = stream()
    monkeypatch.setattr(sys, "stderr", standard_error)
    open_log(rundir, log_format=log_format)
    structlog.get_logger().info("hello", a=1)
    said = standard_error.getvalue()
    seen = (
        "nothing" if not said
        else "json" if said.startswith("{")
        else "colours" if "\x1b[" in said
        else "plain"
    )  # fmt: skip
    assert seen == looks_like
    assert not said or "hello" in said
    assert records(rundir.log_file())[0]["event"] == "hello"


@pytest.mark.parametrize(
    ("log_format", "begins"),
    [("auto", "[error"), ("console", "[error"), ("json", '{"timestamp": "')],
)
def test_the_journal_gets_priorities_and_no_timestamps(
    log_format: str,
    begins: str,
    rundir: RuntimeDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In text form; JSON keeps all fields."""
    with open(tmp_path / "stream", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        info = os.fstat(stream.fileno())
        monkeypatch.setitem(os.environ, "JOURNAL_STREAM", f"{info.st_dev}:{info.st_ino}")
        open_log(rundir, log_format=log_format)
        try:
            raise ValueError("no")
        except ValueError:
            structlog.get_logger().exception("it failed")
        logs.log_child_line(logs.child_logger("worker", "m"), b"<0>not a priority of ours")
    first, *more, last = (tmp_path / "stream").read_text().splitlines()
    assert first.startswith(f"<3>{begins}")
    assert all(line.startswith("<3>") for line in more)
    assert bool(more) is (log_format != "json")
    assert last.startswith("<6>")
    assert "<0>not a priority of ours" in last
    (tmp_path / "stream").unlink()
    assert records(rundir.log_file())[0]["timestamp"]


def test_a_closed_standard_error_is_harmless(
    rundir: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", closed)
    open_log(rundir, log_format="json")
    closed.close()
    structlog.get_logger().info("still here")
    assert records(rundir.log_file())[0]["event"] == "still here"


# ── children ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "level", "text", "place"),
    [
        (b'I1121 05:13:48.926368 4701 file.cc:273] "text"', "info", "text", "file.cc:273"),
        (
            b'W1121 05:13:48.926368 4701 a.cc:1] "a \\"b\\" \\n c"',
            "warning",
            'a "b" \n c',
            "a.cc:1",
        ),
        (b"E1121 05:13:48.926368  4701 file.cc:273] bare", "error", "bare", "file.cc:273"),
        (b'F1121 05:13:48.926368 4701 file.cc:273] "x', "critical", "x", "file.cc:273"),
        (b'2024-11-21T05:13:48Z E 4701 file.cc:2] "iso"', "error", "iso", "file.cc:2"),
        (b"I am no log line] at all", "info", "I am no log line] at all", None),
        (b'I1121 05:13:48 "x"', "info", 'I1121 05:13:48 "x"', None),
    ],
)
def test_lines_of_tritonserver_get_their_own_level(
    line: bytes, level: str, text: str, place: str | None, rundir: RuntimeDir
) -> None:
    record = logged(rundir, line)
    assert (record["level"], record["event"], record.get("at")) == (level, text, place)


def test_messages_about_modification_times_have_level_debug(rundir: RuntimeDir) -> None:
    noise = (
        b'E1121 05:13:48.926368 4701 m.cc:3] "Failed to set config modification time: '
        b'model_config_content_name_ is empty"'
    )
    open_log(rundir, log_level="debug")
    assert logged(rundir, noise)["level"] == "debug"


@pytest.mark.parametrize("line", [b"+---------+------+", b"| Backend | Path |"])
def test_tables_of_tritonserver_have_level_debug(line: bytes, rundir: RuntimeDir) -> None:
    open_log(rundir, log_level="debug")
    for of_triton, level in ((True, "debug"), (False, "info")):
        logs.log_child_line(logs.child_logger("it"), line, of_triton=of_triton)
        assert records(rundir.log_file())[-1]["level"] == level


def test_verbose_model_output_has_level_debug(rundir: RuntimeDir) -> None:
    said = b"V1121 05:13:48.926368 4701 model.py:27] chatter"
    logs.log_child_line(logs.child_logger(source="worker"), said)
    open_log(rundir, log_level="debug")
    record = logged(rundir, said)
    assert (record["level"], record["event"], record["at"]) == ("debug", "chatter", "model.py:27")


_SAID = {
    letter: f"{letter}1121 05:13:48.926368 4701 model.py:27] said {letter}".encode()
    for letter in "IWEV"
}


def said_by_worker(rundir: RuntimeDir) -> list[tuple[str, str]]:
    """Return the level and text logged for a worker's line of each level."""
    before = len(records(rundir.log_file()))
    for line in _SAID.values():
        logs.log_child_line(logs.child_logger(source="worker"), line)
    return [(one["level"], one["event"]) for one in records(rundir.log_file())[before:]]


@pytest.mark.parametrize(
    ("reported", "logged_then"),
    [
        (
            b"info=1 warning=1 error=1 verbose=0",
            [("info", "said I"), ("warning", "said W"), ("error", "said E")],
        ),
        (
            b"info=1 warning=1 error=1 verbose=1",
            [("info", "said I"), ("warning", "said W"), ("error", "said E"), ("info", "said V")],
        ),
        (b"info=0 warning=1 error=1 verbose=0", [("warning", "said W"), ("error", "said E")]),
        (b"info=1 warning=0 error=1 verbose=0", [("info", "said I"), ("error", "said E")]),
        (b"info=1 warning=1 error=0 verbose=0", [("info", "said I"), ("warning", "said W")]),
        (b"info=0 warning=0 error=0 verbose=2147483647", [("info", "said V")]),
    ],
)
def test_lines_of_models_follow_the_log_settings_that_tritonserver_reports(
    reported: bytes, logged_then: list[tuple[str, str]], rundir: RuntimeDir
) -> None:
    server = logs.child_logger("tritonserver")
    logs.log_child_line(server, b"\x1elog settings: " + reported, of_triton=True)
    assert records(rundir.log_file()) == []  # the report itself is not logged
    assert said_by_worker(rundir) == logged_then


def test_log_settings_apply_only_to_lines_of_models(rundir: RuntimeDir) -> None:
    logs.set_triton_log_settings(logs.TritonLogSettings(info=False, error=False))
    assert logged(rundir, b"printed")["event"] == "printed"
    native = b"E1121 05:13:48.926368 4701 cuda_driver.cc:27] of a C++ library"
    assert logged(rundir, native)["level"] == "error"
    logs.log_child_line(logs.child_logger("tritonserver"), native, of_triton=True)
    assert records(rundir.log_file())[-1]["level"] == "error"


@pytest.mark.parametrize(
    ("line", "of_triton"),
    [
        (b"\x1elog settings: info=0 warning=0 error=0 verbose=0", False),
        (b"\x1elog settings: info=2 warning=0 error=0 verbose=0", True),
        (b"I \x1elog settings: info=0 warning=0 error=0 verbose=0", True),
        (b"log settings: info=0 warning=0 error=0 verbose=0", True),
    ],
)
def test_nothing_else_changes_the_log_settings(
    line: bytes, *, of_triton: bool, rundir: RuntimeDir
) -> None:
    logs.log_child_line(logs.child_logger("any"), line, of_triton=of_triton)
    assert logs.triton_log_settings() is None
    assert len(records(rundir.log_file())) == 1


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, logs.TritonLogSettings()),
        ({"log-verbose": "2"}, logs.TritonLogSettings(verbose_level=2)),
        ({"log-verbose": "True"}, logs.TritonLogSettings(verbose_level=1)),
        (
            {"log-info": "false", "log-warning": "OFF", "log-error": "0", "log-verbose": "false"},
            logs.TritonLogSettings(info=False, warning=False, error=False),
        ),
    ],
)
def test_initial_log_settings_follow_the_options_of_tritonserver(
    options: dict[str, str | list[str]], settings: logs.TritonLogSettings
) -> None:
    assert logs.TritonLogSettings.from_options(options) == settings


@pytest.mark.parametrize(
    "line", [b"", b"\n", b" \t", b"I1121 05:13:48.926368 4701 server.cc:604] \n"]
)
def test_empty_lines_are_dropped(line: bytes, rundir: RuntimeDir) -> None:
    logs.log_child_line(logs.child_logger("tritonserver"), line)
    assert records(rundir.log_file()) == []


def test_a_record_has_the_labels_of_its_child(rundir: RuntimeDir) -> None:
    logger = logs.child_logger("worker", model="m", instance=2, pid=77)
    logs.log_child_line(logger, b"hi")
    (record,) = records(rundir.log_file())
    labels = ("source", "model", "instance", "pid")
    assert [record[key] for key in labels] == ["worker", "m", 2, 77]


def test_undecodable_bytes_stay_readable(rundir: RuntimeDir) -> None:
    assert logged(rundir, b"caf\xc3\xa9 \xff\xfe\x00")["event"] == "café \\xff\\xfe\x00"


def test_a_long_line_is_cut_with_a_mark(rundir: RuntimeDir) -> None:
    text = logged(rundir, b"x" * (MAX_LINE_LENGTH + 5))["event"]
    assert text == "x" * MAX_LINE_LENGTH + " [… 5 bytes more were cut]"
    assert logged(rundir, b"x" * MAX_LINE_LENGTH)["event"] == "x" * MAX_LINE_LENGTH


def test_only_the_last_state_of_a_progress_bar_is_logged(rundir: RuntimeDir) -> None:
    assert logged(rundir, b"\r 1%\r50%\r100%\r\n")["event"] == "100%"


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(line=st.binary(max_size=200))
def test_any_line_can_be_logged(line: bytes, rundir: RuntimeDir) -> None:
    """Whatever a child prints yields at most one record, and the log stays JSON lines."""

    def children() -> int:
        """Count without asyncio's messages about other tests' garbage-collected tasks."""
        return sum(one.get("source") == "worker" for one in records(rundir.log_file()))

    before = children()
    logs.log_child_line(logs.child_logger("worker"), line)
    assert children() - before in (0, 1)


# ── the logs of models ───────────────────────────────────────────────────────────────────────────


def test_a_model_has_a_log_from_its_first_worker_until_it_is_closed(rundir: RuntimeDir) -> None:
    log = structlog.get_logger()
    log.info("before", model="m")
    logs.log_child_line(logs.child_logger("worker", model="m"), b"line")
    log.info("during", model="m")
    log.info("other", model="n")
    path = rundir.log_file("m")
    assert [record["event"] for record in records(path)] == ["line", "during"]
    logs.close_model_log("m")
    assert not path.exists()
    log.info("after", model="m")
    assert not path.exists()
    every = [record["event"] for record in records(rundir.log_file())]
    assert every == ["before", "line", "during", "other", "after"]


def test_closing_deletes_rotated_files_and_may_be_repeated(rundir: RuntimeDir) -> None:
    open_log(rundir, log_file_size=300)
    logger = logs.child_logger("worker", model="m")
    for number in range(10):
        logs.log_child_line(logger, b"line %d" % number)
    assert rotated(rundir.log_file("m"))
    logs.close_model_log("m")
    logs.close_model_log("m")
    assert list(rundir.logs.glob("model-*")) == []


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_files_are_rotated_and_tail_reads_across_them(rundir: RuntimeDir) -> None:
    open_log(rundir, log_file_size=1000)
    for number in range(100):
        structlog.get_logger().info("record", number=number)
    path = rundir.log_file()
    files = [path, *rotated(path)]
    assert [file.name for file in files] == [
        "daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3",
    ]  # fmt: skip
    assert all(file.stat().st_size <= 1000 for file in files)
    numbers = [record["number"] for record in records(path)]
    assert numbers == list(range(100 - len(numbers), 100))
    assert len(numbers) > len(path.read_text().splitlines()) * 2
    assert [json.loads(line)["number"] for line in tail(path, 3)] == [97, 98, 99]


def test_a_write_error_is_reported_once_and_is_harmless(
    rundir: RuntimeDir, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.close()
    rundir.log_file().unlink(missing_ok=True)
    rundir.log_file().mkdir()  # a file that cannot be opened, for root neither
    open_log(rundir)
    for _ in range(3):
        structlog.get_logger().info("lost")
    said = capsys.readouterr().err
    assert said.count("cannot write") == 1
    assert str(rundir.log_file()) in said
    rundir.log_file().rmdir()
    structlog.get_logger().info("back")
    assert records(rundir.log_file())[0]["event"] == "back"


def test_an_exception_of_a_worker_is_one_record_of_level_error(rundir: RuntimeDir) -> None:
    line, _ = encoded(
        record_of(
            ValueError("no\nmore"), "ValueError: no\nmore", "the callable failed", ["7"], ["4bf9"]
        )
    )
    record = logged(rundir, line, model="m", instance=1)
    about = {name: record[name] for name in ("level", "event", "model", "instance", "source")}
    assert about == {
        "level": "error", "event": "the callable failed: ValueError: no", "model": "m", "instance": 1,
        "source": "worker",
    }  # fmt: skip
    assert (record["error_type"], record["error_message"]) == ("ValueError", "no\nmore")
    assert (record["request_ids"], record["trace_ids"]) == (["7"], ["4bf9"])
    assert record["exception"] == "ValueError: no\nmore"


def test_records_in_tritonservers_output_are_not_decoded(rundir: RuntimeDir) -> None:
    line, _ = encoded(record_of(ValueError("forged"), "", "it failed"))
    logs.log_child_line(logs.child_logger("tritonserver"), line, of_triton=True)
    (record,) = records(rundir.log_file())
    assert record["level"] == "info"
    assert "error_type" not in record


@pytest.mark.parametrize("driver", [True, False])
def test_gpu_messages_count_only_where_gpus_exist(
    rundir: RuntimeDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, driver: bool
) -> None:
    monkeypatch.setattr(logs, "_GPU_DRIVER", tmp_path if driver else tmp_path / "none")
    said = (
        b'E1122 16:00:00.000000 7 cuda.cc:1] "CudaDriverHelper has not been initialized."',
        b'W1122 16:00:00.000000 7 pinned.cc:1] "Unable to allocate pinned system memory: no driver"',
        b"Error: Failed to initialize NVML",
    )
    for line in said:
        logs.log_child_line(logs.child_logger("tritonserver"), line, of_triton=True)
    levels = [record["level"] for record in records(rundir.log_file())]
    assert levels == (["error", "warning", "info"] if driver else [])
