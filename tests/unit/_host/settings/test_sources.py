"""Where settings come from: which source takes precedence, and which file is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.setting_sources import EMPTY_ENV, error_of, write
from support.users import NOBODY, needs_root

from pytriton._host.settings.declarations import ConfigError, options
from pytriton._host.settings.sources import find_runtime_dir, load

# ── precedence ───────────────────────────────────────────────────────────────────────────────────

PORTS = st.integers(1, 65535).filter(lambda port: port not in (8001, 8002))


@given(in_file=st.none() | PORTS, in_env=st.none() | PORTS, in_flags=st.none() | PORTS)
def test_the_last_source_takes_precedence(
    tmp_path_factory: pytest.TempPathFactory,
    in_file: int | None,
    in_env: int | None,
    in_flags: int | None,
) -> None:
    cwd = tmp_path_factory.mktemp("cwd")
    if in_file is not None:
        write(cwd, f"http_port = {in_file}\n")
    env = {**EMPTY_ENV, **({} if in_env is None else {"PYTRITON_DAEMON_HTTP_PORT": str(in_env)})}
    loaded = load({"http_port": in_flags}, env, cwd)
    reported = [
        (in_flags, "flag --http-port"),
        (in_env, "environment PYTRITON_DAEMON_HTTP_PORT"),
        (in_file, f"file {cwd}/pytriton-daemon.toml"),
        (8000, "default"),
    ]
    value, source = next(pair for pair in reported if pair[0] is not None)
    assert (loaded.config.http_port, loaded.sources["http_port"]) == (value, source)


NAMES = st.sampled_from(["id", "log-verbose", "http-thread-count", "rate-limit"])
OPTIONS = st.dictionaries(NAMES, st.integers(0, 99).map(str), max_size=4)


@given(in_file=OPTIONS, in_env=OPTIONS, in_flags=OPTIONS)
def test_options_of_tritonserver_are_merged(
    tmp_path_factory: pytest.TempPathFactory,
    in_file: dict[str, str],
    in_env: dict[str, str],
    in_flags: dict[str, str],
) -> None:
    cwd = tmp_path_factory.mktemp("cwd")
    write(cwd, "[tritonserver_options]\n" + "".join(f"{k} = {v}\n" for k, v in in_file.items()))
    words = " ".join(f"{k}={v}" for k, v in in_env.items())
    env = {**EMPTY_ENV, "PYTRITON_DAEMON_TRITONSERVER_OPTIONS": words}
    flags = {"tritonserver_options": [f"{k}={v}" for k, v in in_flags.items()]}
    loaded = load(flags, env, cwd)
    assert loaded.config.tritonserver_options == {**in_file, **in_env, **in_flags}
    for name in loaded.config.tritonserver_options:
        expected = "flag" if name in in_flags else "environment" if name in in_env else "file"
        assert loaded.sources[f"tritonserver_options.{name}"].split()[0] == expected


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    env = {**EMPTY_ENV, "PYTRITON_DAEMON_HTTP_PORT": "", "PYTRITON_DAEMON_CONFIG": ""}
    assert load(dict.fromkeys(options()), env, tmp_path).config.http_port == 8000


@pytest.mark.parametrize(
    "name",
    ["PORT", "PORT_1_TCP", "PORT_1_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP"],
)  # fmt: skip
def test_kubernetes_service_variables_are_ignored(name: str, tmp_path: Path) -> None:
    env = {**EMPTY_ENV, f"PYTRITON_DAEMON_{name}": "tcp://10.0.0.1:8000"}
    assert load({}, env, tmp_path).config.http_port == 8000


# ── the settings file ────────────────────────────────────────────────────────────────────────────


def test_the_first_file_found_is_the_only_one_read(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    there = write(home / ".config" / "pytriton-daemon", "http_port = 2\ngrpc_port = 3\n")
    cwd.mkdir()
    env = {"HOME": str(home)}
    assert load({}, env, cwd).file == there
    here = write(cwd, "http_port = 1\n")
    loaded = load({}, env, cwd)
    assert (loaded.file, loaded.config.http_port, loaded.config.grpc_port) == (here, 1, 8001)


def test_a_named_file_wins_over_a_found_one(tmp_path: Path) -> None:
    write(tmp_path, "http_port = 1\n")
    write(tmp_path, "http_port = 2\n", "two.toml")
    write(tmp_path, "http_port = 3\n", "three.toml")
    env = {**EMPTY_ENV, "PYTRITON_DAEMON_CONFIG": "two.toml"}
    assert load({}, env, tmp_path).config.http_port == 2
    assert load({}, env, tmp_path, "three.toml").config.http_port == 3


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"http_port = \n", "line 1"),
        (b"# \xff\n", "is not TOML"),
        (b"a = 1\na = 2\n", "is not TOML"),
    ],
)
def test_a_file_that_is_not_toml_is_reported_with_its_path(
    content: bytes, reported: str, tmp_path: Path
) -> None:
    path = tmp_path / "pytriton-daemon.toml"
    path.write_bytes(content)
    text = error_of(tmp_path)
    assert str(path) in text
    assert reported in text


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    text = error_of(tmp_path, env={"PYTRITON_DAEMON_CONFIG": "gone.toml"})
    assert text == (
        f"PYTRITON_DAEMON_CONFIG names the settings file {tmp_path}/gone.toml, which does not exist"
    )


def test_naming_a_folder_is_reported(tmp_path: Path) -> None:
    assert "cannot read the settings file" in error_of(
        tmp_path, env={"PYTRITON_DAEMON_CONFIG": "."}
    )


@needs_root
def test_an_inaccessible_home_has_no_settings_file(tmp_path: Path) -> None:
    """As in a service with ProtectHome=yes."""
    home = tmp_path / "home"
    write(home / ".config" / "pytriton-daemon", "http_port = 1\n")
    home.chmod(0o000)
    tmp_path.chmod(0o755)
    assert load({}, {"HOME": str(home)}, Path("/")).config.http_port == 1  # root may enter any
    pid = os.fork()
    if pid == 0:
        os.setuid(NOBODY)
        try:
            found = load({}, {"HOME": str(home)}, Path("/")).config.http_port
        except BaseException:
            os._exit(1)
        os._exit(0 if found == 8000 else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_relative_paths_are_relative_to_their_source(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    write(tmp_path / "etc", "cache_dir = 'c'\ntritonserver = 't'\n", "x.toml")
    env = {**EMPTY_ENV, "PYTRITON_DAEMON_TRITONSERVER": "bin/tritonserver"}
    config = load({"runtime_dir": "run"}, env, cwd, str(tmp_path / "etc" / "x.toml")).config
    assert config.cache_dir == str(tmp_path / "etc" / "c")
    assert config.tritonserver == str(cwd / "bin/tritonserver")
    assert config.rundir.path == cwd / "run"


def test_the_runtime_directory_is_found_despite_other_errors(tmp_path: Path) -> None:
    write(tmp_path, "runtime_dir = 'r'\nhttp_prt = 1\n")
    assert find_runtime_dir(None, EMPTY_ENV, tmp_path) == tmp_path / "r"
    env = {**EMPTY_ENV, "PYTRITON_DAEMON_RUNTIME_DIR": "e"}
    assert find_runtime_dir(None, env, tmp_path) == tmp_path / "e"
    assert find_runtime_dir(Path("f"), env, tmp_path) == tmp_path / "f"
    write(tmp_path, "runtime_dir = 1\n")
    with pytest.raises(ConfigError, match="key runtime_dir: 1 is not a path"):
        find_runtime_dir(None, EMPTY_ENV, tmp_path)
