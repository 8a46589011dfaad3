"""The command line: its output and where it goes, and the exit codes that scripts and supervisors rely on.

Daemons are really started by the integration tests; these tests cover commands that run before or without one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forks.prefork import command

from pytriton._cli.errors import CliError
from pytriton._cli.logs import daemon_event, pretty
from pytriton._cli.settings import save_flags, saved_flags
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

ROOT = Path(__file__).parents[3]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    ours = ("PYTRITON_DAEMON_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "HOME": str(tmp_path / "home"),
        "PYTRITON_DAEMON_RUNTIME_DIR": str(tmp_path / "run"),
        "COLUMNS": "200",
        **more,
    }


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `pytriton-daemon` with arguments, in a separate folder and runtime directory."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, cwd=tmp_path, env=environment(tmp_path, **env))

    return run


@pytest.mark.programs
@pytest.mark.parametrize(
    ("package", "argument"), [("pytriton._cli", "status"), ("pytriton.check", "--help")]
)
def test_a_command_whose_parent_ignores_sigchld_sees_the_exit_codes_of_programs(
    tmp_path: Path, package: str, argument: str
) -> None:
    """Ignored signals are inherited. For `doctor`, each program would seem to succeed."""
    program = (
        "import atexit, importlib, signal, subprocess, sys\n"
        "atexit.register(lambda: print(subprocess.run('exit 3', shell=True).returncode))\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "importlib.import_module(sys.argv.pop(1)).main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, package, argument],
        env=environment(tmp_path), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "3"


# ── exit codes ───────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_exit_codes_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE))
    assert rows == {str(int(code)): code.meaning for code in ExitCode}


def test_exit_code_numbers_never_change() -> None:
    """Supervisors and scripts rely on them."""
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 70, 130]
    assert (ExitCode.NO_DAEMON, ExitCode.UNRECOVERABLE, ExitCode.INTERRUPTED) == (3, 70, 130)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",), ("status", "--json"), ("stop",), ("logs",), ("logs", "m"), ("access-token",),
        ("models",), ("unregister", "m"),
    ],
)  # fmt: skip
def test_a_missing_daemon_names_its_directory_and_the_fix(
    arguments: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    done = cli(*arguments)
    assert done.returncode == ExitCode.NO_DAEMON
    assert done.stdout == ""
    assert f"no daemon is running in the runtime directory {tmp_path}/run." in done.stderr
    assert "pytriton-daemon start --detach" in done.stderr


def test_the_runtime_directory_may_come_from_the_settings_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pytriton-daemon.toml").write_text("runtime_dir = 'elsewhere'\n")
    done = cli("status", PYTRITON_DAEMON_RUNTIME_DIR="")
    assert f"{tmp_path}/elsewhere." in done.stderr
    done = cli("status", "--runtime-dir", "flagged", PYTRITON_DAEMON_RUNTIME_DIR="")
    assert f"{tmp_path}/flagged." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("strat",), "No such command 'strat'"),
        (("ls",), "No such command 'ls'. Did you mean 'models' or 'status'?"),
        (("ps",), "Did you mean 'status' or 'top'?"),
        (("help",), "Use 'pytriton-daemon --help'."),
        (("keys", "rm"), "No such command 'rm'. Did you mean 'remove'?"),
        (("start", "--http-prt", "1"), "--http-port"),
        (("start", "--http-port", "x"), "--http-port: 'x' is not a whole number from 0 to 65535"),
        (("start", "--detach", "--grpc-port", "-2"), "flag --grpc-port: '-2' is not"),
        (("start", "--triton-option", "log-verbos=1"), "did you mean log-verbose?"),
        (("start", "--config", "gone.toml"), "gone.toml, which does not exist"),
        (("start", "--model-repository", "gone"), "/gone cannot be read: No such file or directory"),
        (("restart", "--model-repository", "gone"), "Use a directory that has a subdirectory for each model"),
        (("doctor", "--model-repository", "gone"), "model_repository: "),
        (("restart", "--log-level", "loud"), "flag --log-level: 'loud' is not one of debug"),
        (("doctor", "--log-format", "xml"), "flag --log-format: 'xml' is not one of"),
        (("unregister",), "MODEL"),
        (("register", "module"), "'module' is not of the form MODULE:ATTRIBUTE"),
        (("register", "a/linear.py"), "such as linear:classify"),
        (("register", "a/b/linear.py:fn"), "a/b/linear.py does not exist"),
        (("register", "linear.py:fn"), "linear.py does not exist"),
        (("register", "no_such_module:x"), "module 'no_such_module' not found"),
        (("register", "os:no_such"), "has no attribute 'no_such'"),
        (("register", "os:getcwd"), "@pytriton.declare"),
        (("install-server", "--wheel", "gone.whl"), "--wheel: gone.whl does not exist"),
        (("register", "--model-dir", "m", "linear:fn"), "use either MODULE:ATTRIBUTE,"),
        (("register", "--requirement", "x", "linear:fn"), "--requirement needs --model-dir"),
        (("register", "--factory", "--model-dir", "m"), "--factory needs MODULE:ATTRIBUTE"),
        (("top", "--sort", "foo", "--once"), "unknown order 'foo'; use one of: name,"),
    ],
)  # fmt: skip
def test_an_invalid_command_line_exits_with_2_and_the_reason(
    arguments: tuple[str, ...], reported: str, cli: Cli
) -> None:
    done = cli(*arguments)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert reported in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_a_wrong_variable_is_reported(cli: Cli) -> None:
    done = cli("start", PYTRITON_DAEMON_HTPP_PORT="1")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean PYTRITON_DAEMON_HTTP_PORT?" in done.stderr


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_second_daemon_in_a_directory_is_refused(
    detach: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    rundir = RuntimeDir(tmp_path / "run")
    rundir.create()
    with open(rundir.lock_file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        done = cli("start", *detach)
    assert done.returncode == ExitCode.ALREADY_RUNNING
    assert f"a daemon is already running in {tmp_path}/run (pid {os.getpid()})" in done.stderr


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_missing_tritonserver_makes_start_exit_with_6(
    detach: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    done = cli("start", *detach, "--tritonserver", "gone")
    assert done.returncode == ExitCode.SERVER_FAILED, done.stderr
    assert f"{tmp_path}/gone does not exist" in done.stderr
    assert RuntimeDir(tmp_path / "run").running_pid() is None


def test_a_runtime_directory_that_is_too_long_is_refused(cli: Cli) -> None:
    done = cli("start", "--detach", "--runtime-dir", "x" * 120)
    assert done.returncode == ExitCode.USAGE
    assert "bytes too long" in done.stderr


@pytest.mark.programs
def test_a_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    rundir = RuntimeDir(tmp_path / "run")
    rundir.create()
    rundir.log_file().write_text("line\n" * 50_000)
    code = "set -o pipefail; $PYTHON -m pytriton._cli logs -n 50000 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path, PYTHON=sys.executable),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")


# ── start ────────────────────────────────────────────────────────────────────────────────────────


def test_print_config_shows_values_and_sources_and_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pytriton-daemon.toml").write_text("grpc_port = 2\n")
    done = cli(
        "start", "--print-config", "--http-port", "1", "--no-allow-metrics", "--triton-option",
        "log-verbose=1", PYTRITON_DAEMON_LOG_LEVEL="debug",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"# settings file: {tmp_path}/pytriton-daemon.toml"
    for line in [
        "http_port = 1  # flag --http-port",
        f"grpc_port = 2  # file {tmp_path}/pytriton-daemon.toml",
        'log_level = "debug"  # environment PYTRITON_DAEMON_LOG_LEVEL',
        "allow_metrics = false  # flag --allow-metrics",
        "metrics_port = 8002  # default",
        'log-verbose = "1"  # flag --triton-option',
    ]:
        assert line in done.stdout.splitlines()
    assert not (tmp_path / "run").exists()


def test_every_setting_is_a_flag_of_start(cli: Cli) -> None:
    from pytriton._host.settings.declarations import flag_name, options

    shown = cli("start", "--help").stdout
    for name in options():
        assert flag_name(name) in shown


def test_flags_are_saved_for_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RuntimeDir(tmp_path)
    monkeypatch.chdir(tmp_path)
    save_flags(StartFlags({"http_port": "1", "cache_dir": "c", "grpc_port": "2"}, "x.toml"), rundir)
    monkeypatch.chdir("/")
    again = StartFlags({"http_port": "3"}).merged_over(saved_flags(rundir))
    assert again.flags == {"http_port": "3", "grpc_port": "2", "cache_dir": f"{tmp_path}/c"}
    assert again.config == f"{tmp_path}/x.toml"


def test_without_an_earlier_start_there_are_no_saved_flags(tmp_path: Path) -> None:
    assert saved_flags(RuntimeDir(tmp_path)) == StartFlags({})


@pytest.mark.parametrize("content", ["", "[]", '{"flags": 3}', "\x00"])
def test_invalid_flags_are_reported(content: str, tmp_path: Path) -> None:
    (tmp_path / "start.json").write_text(content)
    with pytest.raises(CliError, match="Delete it"):
        saved_flags(RuntimeDir(tmp_path))


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────

RECORD = {
    "timestamp": "2026-01-02T03:04:05.678901Z",
    "level": "error",
    "event": "text",
    "model": "m",
    "instance": 1,
    "pid": 7,
}


def test_logs_work_without_a_daemon(cli: Cli, tmp_path: Path) -> None:
    rundir = RuntimeDir(tmp_path / "run")
    rundir.create()
    lines = [json.dumps({**RECORD, "event": f"text {number}"}) for number in range(5)]
    rundir.log_file("m").write_text("\n".join(lines) + "\n")
    rundir.log_file().write_text("no JSON\n")
    assert cli("logs").stdout == "no JSON\n"
    assert cli("logs", "m", "--lines", "2", "--json").stdout.splitlines() == lines[-2:]
    assert cli("logs", "m", "-n", "1").stdout == (
        "2026-01-02 03:04:05.678 error    m/1: text 4 pid=7\n"
    )
    of_n = json.dumps({**RECORD, "model": "n"})
    rundir.log_file().write_text(
        "\n".join([of_n, *lines, json.dumps({"event": '"n"'}), of_n]) + "\n"
    )
    other = cli("logs", "n", "--json")  # it could not be loaded, say: it has no log of its own
    assert other.stdout.splitlines() == [of_n, of_n]
    assert "model 'n' has no log of its own" in other.stderr
    assert cli("logs", "n", "-n", "1", "--json").stdout.splitlines() == [of_n]
    other = cli("logs", "../daemon")
    assert other.returncode == ExitCode.REGISTRATION_FAILED
    assert "models with logs: m." in other.stderr


@pytest.mark.programs
def test_follow_shows_new_lines_until_interrupted(tmp_path: Path) -> None:
    rundir = RuntimeDir(tmp_path / "run")
    rundir.create()
    rundir.log_file().write_text("first\n")
    command = [sys.executable, "-u", "-m", "pytriton._cli", "logs", "--follow"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        with open(rundir.log_file(), "a") as log:
            log.write("second\n")
        assert process.stdout.readline() == "second\n"
        process.send_signal(2)
        assert process.wait() == ExitCode.INTERRUPTED
        watchdog.cancel()


def test_a_record_is_shown_in_colour_with_its_traceback() -> None:
    line = json.dumps({**RECORD, "exception": "Traceback\n  E"})
    assert pretty(line, colors=True) == (
        "\x1b[31m2026-01-02 03:04:05.678 error    m/1: text pid=7\nTraceback\n  E\x1b[0m"
    )


def test_control_sequences_in_child_output_are_escaped() -> None:
    assert pretty(json.dumps({"event": "a\x1b[2J\nb\tc\u202ed é"})).endswith(
        " a\\x1b[2J\\nb\tc\\u202ed é"
    )
    assert pretty("\x1b[2J") == "\\x1b[2J"


def test_progress_of_a_start_shows_only_the_daemons_own_records() -> None:
    assert daemon_event('{"event": "tritonserver is ready"}') == "tritonserver is ready"
    assert daemon_event('{"event": "noise", "source": "tritonserver"}') is None
    assert daemon_event("no JSON") is None


# ── version ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.programs
@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_loads_neither_parser_nor_tables(argument: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv[1:] = [sys.argv[1]]\n"
        "from pytriton._cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    heavy = {'typer', 'rich', 'msgspec', 'zmq', 'numpy'}\n"
        "    print(int(end.code), sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"pytriton-daemon \d+\.\d+\.\d+ \(Python .*\)", first)
    assert second == "0 []"


@pytest.mark.programs
def test_the_console_script_and_the_module_are_the_same(cli: Cli) -> None:
    script = Path(sys.executable).with_name("pytriton-daemon")
    done = subprocess.run([str(script), "version"], check=False, capture_output=True, text=True)
    # The script may name its interpreter by another link: python3.11 for python.
    assert done.stdout.split(",")[0] == cli("version").stdout.split(",")[0]


def test_the_help_lists_common_settings_first_and_omits_values_of_switches(cli: Cli) -> None:
    top, start = cli("--help").stdout, cli("start", "--help").stdout
    assert "--version" in top
    assert "<bool>" not in top + start
    first, others = start.index("Common settings"), start.index("All other settings")
    assert first < start.index("--http-port") < others < start.index("--resume-timeout-s")
    assert cli("--version").stdout == cli("version").stdout


def test_doctors_table_fits_a_page(cli: Cli) -> None:
    table = cli("doctor").stdout.splitlines()
    assert len(table) > 10
    assert max(map(len, table)) <= 100


def test_the_readmes_module_can_be_imported(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    module = tmp_path / "linear.py"
    module.write_text(text.partition("say `linear.py`:\n\n```python\n")[2].partition("```")[0])
    # It connects to no daemon.
    assert callable(runpy.run_path(str(module))["infer_fn"])
