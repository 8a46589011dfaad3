"""Settings: one declaration, four sources, and errors that name the place and the mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict
from support.setting_sources import EMPTY_ENV, error_of, write

from pytriton._host.settings.declarations import ConfigError, DaemonConfig, flag_name, options
from pytriton._host.settings.rendering import config_as_toml
from pytriton._host.settings.sources import load
from pytriton._host.settings.triton_options import KNOWN, OURS, REPEATABLE, SINGLE
from pytriton.dispatcher.openai.server import cors_headers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# ── values ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("http_port", "0", 0),
        ("log_level", "WARNING", "warning"),
        ("restricted_endpoints", "trace, health  trace", ("trace", "health")),
        ("tritonserver_options", "log-verbose=1 http-thread-count=8",
         {"log-verbose": "1", "http-thread-count": "8"}),
        # For later versions, known or not, the executable itself is queried.
        ("tritonserver_options", "grpc-infer-thread-count=2 quantum-tunnels=9",
         {"grpc-infer-thread-count": "2", "quantum-tunnels": "9"}),
        ("tritonserver_options", "'host-policy=a,b=c d'", {"host-policy": ["a,b=c d"]}),
        ("tritonserver_options", ["trace-config=a=1", "trace-config=b=2"],
         {"trace-config": ["a=1", "b=2"]}),
        ("tritonserver_options", {"log-info": False, "--id": "x", "metrics-interval-ms": 2.5},
         {"log-info": "false", "id": "x", "metrics-interval-ms": "2.5"}),
    ],
)  # fmt: skip
def test_values_are_parsed(name: str, raw: object, value: object, tmp_path: Path) -> None:
    assert getattr(load({name: raw}, EMPTY_ENV, tmp_path).config, name) == value


@pytest.mark.parametrize(
    ("name", "raw", "reported"),
    [
        ("allow_http", "maybe", "'maybe' is not one of true"),
        ("http_port", "65536", "a whole number from 0 to 65535"),
        ("grace_period_s", [], "a number of 0 or more"),
        ("response_cache_size", "64 apples", "a number of bytes"),
        ("log_format", "xml", "one of auto, console, json"),
        ("http_address", "a b", "a word without white space"),
        ("runtime_dir", 3, "3 is not a path"),
        ("tritonserver_options", "log-verbos=1", "'log-verbos' (did you mean log-verbose?)"),
        ("tritonserver_options", "Log_Verbose=1", "tritonserver has no option 'Log_Verbose'"),
        ("tritonserver_options", "allow-client-shm=true", "use the setting allow_client_shm"),
        ("tritonserver_options", "http-max-input-size=1G", "'1G', but must be a number of bytes"),
        ("tritonserver_options", "http-port=1", "by the daemon; use the setting http_port"),
        ("tritonserver_options", "log-verbose=1 log-verbose=2", "log-verbose is given twice"),
        ("tritonserver_options", "log-verbose", "'log-verbose' is not NAME=VALUE"),
        ("tritonserver_options", "id=", "the value of id is empty"),
        ("tritonserver_options", "disable-auto-complete-config=true", "is set by the daemon"),
        ("tritonserver_options", "log-verbose='1", "cannot be split like a shell command"),
        ("tritonserver_options", {"log-verbose": {"a": 1}}, "must be text, a number"),
        ("tritonserver_options", "cache-config=local,size=1", "the setting response_cache_size"),
        ("tritonserver_options", "backend-config=python,shm-region-prefix-name=x", "the daemon sets the prefix"),
        ("tritonserver_options", {"backend-config": ["python, shm-region-prefix-name =x"]}, "the daemon sets the prefix"),
        ("tritonserver_options", "log-file=triton.log", "use an absolute path"),
        ("tritonserver_options", "trace-config=triton,file=trace.json", "use an absolute path"),
        ("tritonserver_options", 7, "is neither a table of options"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_with_its_source_and_the_allowed_values(
    name: str, raw: object, reported: str, tmp_path: Path
) -> None:
    if raw == []:  # no flags at all
        write(tmp_path, f"{name} = []")
        text = error_of(tmp_path)
        assert text.startswith(f"file {tmp_path}/pytriton-daemon.toml, key {name}: ")
    else:
        text = error_of(tmp_path, flags={name: raw})
        assert text.startswith(f"flag {flag_name(name)}: ")
    assert reported in text


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    write(tmp_path, "http_prt = 1\ngrpc_port = 'x'\n")
    text = error_of(
        tmp_path,
        flags={"log_level": "loud"},
        env={"PYTRITON_DAEMON_HTTPPORT": "1", "PYTRITON_DAEMON_ALLOW_GRPC": "?"},
    )
    file = tmp_path / "pytriton-daemon.toml"
    assert text.splitlines() == [
        f"file {file}, key http_prt: there is no such setting (did you mean http_port?)",
        f"file {file}, key grpc_port: 'x' is not a whole number from 0 to 65535",
        "environment PYTRITON_DAEMON_ALLOW_GRPC: '?' is not one of true, yes, on, 1 or false, no, "
        "off, 0",
        "environment PYTRITON_DAEMON_HTTPPORT: there is no such setting (did you mean "
        "PYTRITON_DAEMON_HTTP_PORT?)",
        "flag --log-level: 'loud' is not one of debug, info, warning, error",
    ]


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ({"http_port": 9, "grpc_port": 9}, "http_port and grpc_port are both 9"),
        ({"allow_http": False, "allow_grpc": False}, "clients could not send requests"),
    ],
)
def test_contradictions_are_reported_with_their_sources(
    flags: dict[str, object], reported: str, tmp_path: Path
) -> None:
    text = error_of(tmp_path, flags=flags)
    assert reported in text
    assert all(f"{name}: flag {flag_name(name)}" in text for name in flags)


# ── what contradicts what: TLS and the probe ─────────────────────────────────────────────────────

CERTS = {"grpc-server-cert": "/c.pem", "grpc-server-key": "/c.key"}


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ({"tritonserver_options": {"grpc-use-ssl": True}}, "gRPC with TLS needs grpc-server-cert"),
        ({"tritonserver_options": {"grpc-use-ssl": 1, **CERTS, "grpc-server-key": "k.pem"}},
         "grpc-server-key in tritonserver_options is 'k.pem', but must be an absolute path"),
        ({"tritonserver_options": {"grpc-use-ssl-mutual": True, **CERTS}}, "needs grpc-root-cert"),
        ({"tritonserver_options": {"grpc-use-ssl-mutual": "True", **CERTS, "grpc-root-cert": "/r"},
          "allow_http": False}, "set frontend to native, or allow_http to true"),
    ],
)  # fmt: skip
def test_contradictions_of_tls(flags: Any, reported: str, tmp_path: Path) -> None:
    assert reported in error_of(tmp_path, flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"tritonserver_options": {"grpc-use-ssl": False}},
        {"tritonserver_options": {"grpc-use-ssl": True}, "allow_grpc": False},
        {"tritonserver_options": {"grpc-use-ssl": True, **CERTS}, "allow_http": False},
        {"tritonserver_options": {"grpc-use-ssl-mutual": 1, **CERTS, "grpc-root-cert": "/r"}},
    ],
)
def test_sufficient_settings_for_tls(flags: Any, tmp_path: Path) -> None:
    assert load({**flags}, EMPTY_ENV, tmp_path)


# ── access ───────────────────────────────────────────────────────────────────────────────────────

TOKEN = "not-to-be-shown-anywhere"


@pytest.mark.parametrize("raw", ["trace,model-repo", ["trace", "model-repo"]])
def test_an_unknown_endpoint_is_reported_with_the_nearest(raw: object, tmp_path: Path) -> None:
    text = error_of(tmp_path, {"restricted_endpoints": raw})
    assert "flag --restricted-endpoints: 'model-repo' is not one of model-repository," in text
    assert "(did you mean model-repository?)" in text


@pytest.mark.parametrize(
    "raw", ["short-secret", "white space in a secret", "colon:and=equals:in-it", 1]
)
def test_an_invalid_token_is_not_shown(raw: object, tmp_path: Path) -> None:
    text = error_of(tmp_path, {}, {"PYTRITON_DAEMON_ACCESS_TOKEN": str(raw)})
    assert "PYTRITON_DAEMON_ACCESS_TOKEN: the value (not shown) is not 16 to 512 letters" in text
    assert str(raw) not in text.replace("16 to 512", "")


def test_the_token_is_neither_printed_nor_in_the_settings_repr(tmp_path: Path) -> None:
    loaded = load({}, {**EMPTY_ENV, "PYTRITON_DAEMON_ACCESS_TOKEN": TOKEN}, tmp_path)
    assert loaded.config.access_token == TOKEN
    text = config_as_toml(loaded)
    assert TOKEN not in text
    assert "# access_token is set; its value is not shown  # environment PYTRITON_DAEMON" in text
    tomllib.loads(text)
    assert TOKEN not in repr(loaded)
    assert "http_port=8000" in repr(loaded)


@pytest.mark.parametrize("name", ["http-restricted-api", "grpc-restricted-protocol"])
def test_restrictions_of_tritonserver_are_settings_of_ours(name: str, tmp_path: Path) -> None:
    text = error_of(tmp_path, {"tritonserver_options": [f"{name}=health:key=value"]})
    assert "use the settings restricted_endpoints and access_token" in text


# ── handing over, printing, documenting ──────────────────────────────────────────────────────────


def test_the_daemon_process_gets_the_same_settings(tmp_path: Path) -> None:
    flags = {"http_port": "1", "tritonserver_options": ["trace-config=a=1", "id=é"]}
    config = load(flags, EMPTY_ENV, tmp_path).config
    assert DaemonConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("data", [b"", b"{", b'{"http_prt": 1}', b'{"http_port": -1}', b"[]"])
def test_unreadable_settings_are_reported(data: bytes) -> None:
    with pytest.raises(ConfigError, match="has received invalid settings"):
        DaemonConfig.from_json(data)


def test_printed_settings_are_a_settings_file_with_the_same_meaning(tmp_path: Path) -> None:
    flags = {
        "http_port": "1",
        "tritonserver_options": ["trace-config=a=1", "trace-config=b", 'id="\\\x7fü'],
    }
    loaded = load(flags, {**EMPTY_ENV, "PYTRITON_DAEMON_LOG_LEVEL": "debug"}, tmp_path)
    text = config_as_toml(loaded)
    assert "http_port = 1  # flag --http-port\n" in text
    assert 'log_level = "debug"  # environment PYTRITON_DAEMON_LOG_LEVEL\n' in text
    assert "grpc_port = 8001  # default\n" in text
    tomllib.loads(text)
    write(tmp_path, text, "printed.toml")
    assert load({}, EMPTY_ENV, tmp_path, "printed.toml").config == loaded.config


def test_every_setting_has_help_and_a_valid_default() -> None:
    config = DaemonConfig()
    fields = list(json.loads(config.to_json()))
    assert list(options()) == fields[: len(options())], "fixed values come after the settings"
    for name, option in options().items():
        assert option.help.endswith("."), name
        value = getattr(config, name)
        assert option.kind.read(value) == value


def test_the_three_kinds_of_tritonserver_options_exclude_each_other() -> None:
    assert not SINGLE & REPEATABLE
    assert not KNOWN & set(OURS)


def test_a_config_refuses_invalid_unknown_and_changed_settings() -> None:
    with pytest.raises(ValueError, match="http_port"):
        DaemonConfig(http_port=70000)
    with pytest.raises(ValueError, match="resume_timeout_s"):
        DaemonConfig(resume_timeout_s=-1.0)
    with pytest.raises(ValueError, match="repository-poll-secs"):
        DaemonConfig(tritonserver_options={"repository-poll-secs": "-1"})
    with pytest.raises(TypeError, match="no_such_setting"):
        DaemonConfig(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        DaemonConfig().http_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://chat.example/", "https://chat.example"),
        ("https://Chat.Example:443", "https://chat.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("*", "https://anybody"),
    ],
)
def test_allowed_origins_are_normalized(written: str, origin: str) -> None:
    allowed = options()["cors_origins"].kind.read(written)
    asked: Any = SimpleNamespace(method="GET", headers=CIMultiDict({"Origin": origin}))
    assert cors_headers(asked, allowed)["Access-Control-Allow-Origin"] == origin


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cors_origins", ("chat.example",)),
        ("openai_port", 65536),
        ("openai_limit", ("requests=0",)),
        ("openai_limit", ("response_s=inf",)),
        ("openai_limit", ("body_bytes=-1",)),
        ("openai_limit", ("streams=5",)),
        ("openai_address", "two words"),
    ],
)
def test_impossible_openai_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        DaemonConfig(**{name: value})  # type: ignore[arg-type]  # that is what is tried
