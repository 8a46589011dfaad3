"""`pytriton.check.utils`: programs run beside a test, their output and resource usage."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.real_daemon import eventually

from pytriton.check.utils import (
    DEFAULT_LOG_FORMAT,
    ProcessMonitoring,
    ProcessMonitoringThread,
    ScriptThread,
    TestMonitoringContext,
    find_free_port,
    get_current_container_version,
    search_warning_on_too_verbose_log_level,
    verify_docker_image_in_readme_same_as_tested,
)

WAIT = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + WAIT.partition("; ")[2]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# ── ScriptThread ─────────────────────────────────────────────────────────────────────────────────


def test_a_scripts_whole_output_is_captured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os, sys; print(os.getcwd()); print('to stderr', file=sys.stderr); sys.exit(3)"
    with (
        caplog.at_level(logging.INFO, "mine"),
        ScriptThread(python(code), tmp_path, name="mine") as script,
    ):
        script.join()
    assert script.returncode == 3
    assert sorted(script.output.splitlines()) == sorted([str(tmp_path), "to stderr"])
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        script.output.splitlines()
    )


def test_leaving_the_block_interrupts_running_scripts() -> None:
    with ScriptThread(python(WAIT)) as script:
        eventually(lambda: "up" in script.output, "it is up")
        assert script.is_alive()
        assert script.returncode is None
        assert isinstance(script.process, psutil.Process)
        assert script.process.children() == []
    script.interrupt()  # nothing happens
    assert script.returncode == -signal.SIGINT or "KeyboardInterrupt" in script.output


def test_a_script_that_ignores_the_interrupt_is_killed_with_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pytriton.check.scripts._GRACE_S", 0.2)
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {DEAF!r}], stdin=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n" + DEAF.replace("; ", "\n")
    )
    with ScriptThread(python(code)) as script:
        eventually(lambda: script.output.count("up") == 2, "both are up")
        # Whichever of the two comes to its line first.
        (child,) = (int(word) for word in script.output.split() if word.isdecimal())
    assert script.returncode == -signal.SIGKILL
    eventually(lambda: not psutil.pid_exists(child), "its child has ended, too")


def test_without_a_thread_start_waits_for_the_end() -> None:
    script = ScriptThread(python("print(1)"))
    script.start(threaded=False)
    assert (script.returncode, script.output, script.is_alive()) == (0, "1\n", False)


def test_a_program_that_cannot_start_is_an_immediate_error(tmp_path: Path) -> None:
    script = ScriptThread([tmp_path / "nothing"])
    with pytest.raises(FileNotFoundError, match="nothing"):
        script.start()
    script.stop()
    assert script.returncode is None


# ── monitoring ───────────────────────────────────────────────────────────────────────────────────


def test_monitoring_reports_the_usage_of_a_process_tree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("monitored")
    said: list[str] = []
    with caplog.at_level(logging.DEBUG, "monitored"), ScriptThread(python(WAIT)) as script:
        eventually(lambda: "up" in script.output, "it is up")
        monitoring = ProcessMonitoring(logger, custom_monitors=[lambda log: said.append(log.name)])
        monitoring.dump_state()
        monitoring.dump_threads()
        assert script.process is not None
        text = caplog.text
        assert f"process {os.getpid()} " in text
        assert f"process {script.process.pid} " in text
        assert "thread " in text
        assert said == ["monitored"]


def test_a_replacement_child_counts_as_restarted() -> None:
    first = ScriptThread(python(WAIT))
    with first:
        eventually(lambda: "up" in first.output, "it is up")
        assert first.process is not None
        monitoring = ProcessMonitoring(logging.getLogger("monitored"))
        assert monitoring.get_restarted_children() == []
        with ScriptThread(["sleep", "100"]):
            assert monitoring.get_restarted_children() == []  # a new one
    with ScriptThread(python(WAIT)) as second:
        eventually(lambda: "up" in second.output, "it is up")
        assert [WAIT in command for command in monitoring.get_restarted_children()] == [True]
        assert monitoring.get_restarted_children() == []


def test_monitoring_runs_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    def seen() -> int:
        return caplog.text.count(f"process {os.getpid()} ")

    with caplog.at_level(logging.DEBUG):
        with TestMonitoringContext(interval=0.01):
            eventually(lambda: seen() >= 3, "three looks")
        after = seen()
        thread = ProcessMonitoringThread(ProcessMonitoring(logging.getLogger("other")), interval=60)
        thread.start()
        thread.stop()
        thread.stop()
    assert seen() >= after + 1


# ── the small ones ───────────────────────────────────────────────────────────────────────────────


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("", find_free_port()))
        listener.listen()


def test_the_warning_of_a_verbose_log_is_found() -> None:
    text = (
        "2026 - WARNING - Triton Inference Server is running with enabled verbose logs "
        "(log_verbose_level=4). It may affect inference performance.\n"
    )
    assert search_warning_on_too_verbose_log_level(f"first\n{text}last")
    assert not search_warning_on_too_verbose_log_level(text.replace("verbose", "terse"))


def test_the_container_version_comes_from_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        if name.startswith("NVIDIA_"):
            monkeypatch.delenv(name)
    assert get_current_container_version() is None
    monkeypatch.setenv("NVIDIA_PYTORCH_VERSION", "24.07")
    assert get_current_container_version() == "24.07"


def test_a_readme_names_the_image(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("docker run example/pytorch:24.07-py3\n")
    verify_docker_image_in_readme_same_as_tested(readme, "example/pytorch:24.07-py3")
    with pytest.raises(
        AssertionError, match=r"README\.md does not contain the name of the tested image"
    ):
        verify_docker_image_in_readme_same_as_tested(str(readme), "example/pytorch:24.08-py3")


def test_the_log_format_formats() -> None:
    record = logging.makeLogRecord({"msg": "hello", "name": "mine", "levelname": "INFO"})
    assert "mine: hello" in logging.Formatter(DEFAULT_LOG_FORMAT).format(record)


def test_importing_it_starts_nothing() -> None:
    code = "import threading, pytriton.check.utils; print(threading.active_count())"
    done = subprocess.run(python(code), check=True, capture_output=True, text=True)
    assert done.stdout == "1\n"
