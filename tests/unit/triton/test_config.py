"""TritonConfig: every field from arguments, dicts and the environment, and the resulting daemon settings."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.exceptions import PyTritonValidationError
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from pytriton.triton.settings import daemon_settings, effective_security

#: A value of each kind as the environment has it, and as the field has it.
SAMPLES = {
    "bool": ("False", False),
    "int": ("7", 7),
    "str": ("two words", "two words"),
    "Path": ("/a folder/file", Path("/a folder/file")),
}
FIELDS = [(f.name, str(f.type).partition(" |")[0]) for f in dataclasses.fields(TritonConfig)]
#: Every field of the present PyTriton, from its documentation.
DOCUMENTED = """
    model_repository id log_verbose log_file exit_timeout_secs exit_on_error strict_readiness allow_http http_address
    http_port http_header_forward_pattern http_thread_count http_restricted_api allow_grpc grpc_address grpc_port
    grpc_header_forward_pattern grpc_infer_allocation_pool_size grpc_restricted_protocol grpc_use_ssl
    grpc_use_ssl_mutual grpc_server_cert grpc_server_key grpc_root_cert grpc_infer_response_compression_level
    grpc_keepalive_time grpc_keepalive_timeout grpc_keepalive_permit_without_calls grpc_http2_max_pings_without_data
    grpc_http2_min_recv_ping_interval_without_data grpc_http2_max_ping_strikes allow_metrics allow_gpu_metrics
    allow_cpu_metrics metrics_interval_ms metrics_port metrics_address metrics_config allow_sagemaker sagemaker_port
    sagemaker_safe_port_range sagemaker_thread_count allow_vertex_ai vertex_ai_port vertex_ai_thread_count
    vertex_ai_default_model trace_config cache_config cache_directory buffer_manager_thread_count
    response_cache_byte_size
"""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYTRITON_TRITON_CONFIG_")]:
        monkeypatch.delenv(name)


def settings(config: TritonConfig, security: TritonSecurityConfig | None = None) -> DaemonConfig:
    """Return the resulting settings of the daemon."""
    raw = daemon_settings(config, effective_security(config, security), Path("/tmp/x"), ["first"])
    return DaemonConfig.from_json(json.dumps(raw).encode())


def test_every_documented_field_exists() -> None:
    assert [name for name, _ in FIELDS] == DOCUMENTED.split()
    assert set(TritonConfig().to_dict().values()) == {None}


@pytest.mark.parametrize(("name", "kind"), FIELDS)
def test_every_field_from_the_environment(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = SAMPLES.get(kind, ("a=b c", ["a=b c"]))
    variable = f"PYTRITON_TRITON_CONFIG_{name.upper()}" + ("_0" if kind.startswith("list") else "")
    monkeypatch.setenv(variable, text)
    assert getattr(TritonConfig.from_env(), name) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", True), ("1", True), ("on", True), ("false", False), ("0", False), ("NO", False)],
)
def test_booleans(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ALLOW_METRICS", text)
    assert TritonConfig.from_env().allow_metrics is value
    assert TritonConfig.from_dict({"allow_metrics": text}).allow_metrics is value


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [("ALLOW_HTTP", "maybe", "one of true, yes"), ("HTTP_PORT", "http", "an integer")],
)
def test_an_invalid_value_is_reported_with_its_variable(
    name: str, text: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_{name}", text)
    with pytest.raises(
        PyTritonValidationError, match=f"PYTRITON_TRITON_CONFIG_{name}: '{text}' is not {wanted}"
    ):
        TritonConfig.from_env()


def test_lists_are_ordered_by_their_numbers_and_gaps_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, text in {"10": "c=3", "2": "b=2", "0": "a=1"}.items():
        monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_METRICS_CONFIG_{number}", text)
    assert TritonConfig.from_env().metrics_config == ["a=1", "b=2", "c=3"]


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("metrics_config", "a=1,b=2", ["a=1", "b=2"]),
        (
            "metrics_config",
            "summary_quantiles=0.5:0.05,0.9:0.01",
            ["summary_quantiles=0.5:0.05,0.9:0.01"],
        ),
        (
            "trace_config",
            "mode=opentelemetry,opentelemetry,url=x",
            ["mode=opentelemetry", "opentelemetry,url=x"],
        ),
        ("trace_config", "opentelemetry,url=x,rate=1", ["opentelemetry,url=x", "rate=1"]),
        ("cache_config", "local,size=1048576", ["local,size=1048576"]),
    ],
)
def test_a_list_given_as_one_text(name: str, text: str, entries: list[str]) -> None:
    assert getattr(TritonConfig.from_dict({name: text}), name) == entries


def test_arguments_may_be_text_as_in_variables() -> None:
    made = settings(
        TritonConfig(http_port="9000", grpc_port=np.int64(9001), allow_metrics="False")  # type: ignore[arg-type]
    )
    assert (made.http_port, made.grpc_port, made.allow_metrics) == (9000, 9001, False)
    listed = TritonConfig(cache_config="local,size=1048576")  # type: ignore[arg-type]
    assert settings(listed).response_cache_size == 1048576


@pytest.mark.parametrize("name", ["log_file", "cache_directory", "grpc_server_key"])
def test_a_relative_path_is_relative_to_the_scripts_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = settings(TritonConfig(**{name: "its name"}))  # type: ignore[arg-type]
    assert made.tritonserver_options[name.replace("_", "-")] == str(tmp_path / "its name")


@pytest.mark.parametrize(
    ("name", "value"), [("http_port", "http"), ("log_verbose", "high"), ("allow_http", "maybe")]
)
def test_an_invalid_argument_is_named_before_anything_starts(name: str, value: str) -> None:
    with pytest.raises(PyTritonValidationError, match=f"TritonConfig: {name}: '{value}' is not"):
        TritonConfig(**{name: value})  # type: ignore[arg-type]


def test_the_documented_variable_for_the_log_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_LOG_VERBOSITY", "4")
    assert TritonConfig.from_env().log_verbose == 4


def test_unknown_names_are_reported_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PROT", "1")
    with caplog.at_level(logging.WARNING):
        assert TritonConfig.from_env() == TritonConfig()
        assert TritonConfig.from_dict({"grpc_prot": 1}) == TritonConfig()
    assert "PYTRITON_TRITON_CONFIG_HTTP_PROT is ignored" in caplog.text
    assert "did you mean http_port?" in caplog.text
    assert "did you mean grpc_port?" in caplog.text
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'http_prot' \(did you mean http_port\?\)"
    ):
        TritonConfig(http_prot=1)  # type: ignore[call-arg]


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="can't be used with positional arguments"):
        TritonConfig("models")  # type: ignore[arg-type]


def test_at_least_one_endpoint_is_needed() -> None:
    with pytest.raises(
        PyTritonValidationError, match="The `http` or `grpc` endpoint has to be allowed"
    ):
        TritonConfig(allow_http=False, allow_grpc=False)


def test_arguments_override_the_environment_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT", "1234")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_GRPC_PORT", "1235")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ALLOW_METRICS", "true")
    triton = Triton(config=TritonConfig(http_port=5678, allow_metrics=False))
    text = triton._triton_server_config.to_cli_string()
    assert text == "--http-port=5678 --grpc-port=1235 --allow-metrics=false"


def test_configurations_are_plain_values() -> None:
    config = TritonConfig(http_port=1, cache_config=["local,size=1"])
    assert pickle.loads(pickle.dumps(config)) == config
    assert TritonConfig.from_dict(config.to_dict()) == config
    assert dataclasses.replace(config, http_port=2).http_port == 2


# ── what becomes of it ───────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_those_of_pytriton() -> None:
    made = settings(TritonConfig())
    assert (made.http_port, made.grpc_port, made.metrics_port) == (8000, 8001, 8002)
    assert {made.http_address, made.grpc_address, made.metrics_address} == {"0.0.0.0"}
    assert (made.allow_http, made.allow_grpc, made.allow_metrics) == (True, True, True)
    assert made.ephemeral
    assert made.tritonserver_options == {}


#: Fields that become settings of the daemon, in the tests below and above.
SETTINGS = {
    "allow_http", "allow_grpc", "allow_metrics", "http_port", "grpc_port", "metrics_port", "http_address",
    "grpc_address", "metrics_address", "exit_timeout_secs", "response_cache_byte_size", "http_restricted_api",
    "grpc_restricted_protocol", "model_repository",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"), [one for one in FIELDS if one[0] not in (*SETTINGS, "cache_directory")]
)
def test_every_other_field_is_an_option_of_the_server(name: str, kind: str) -> None:
    """One that a real daemon accepts, with spaces in it."""
    given: dict[str, Any] = {"bool": False, "int": 7, "str": "a b", "Path": Path("/a b")}
    wanted: dict[str, Any] = {"bool": "false", "int": "7", "str": "a b", "Path": "/a b"}
    config = TritonConfig(**{name: given.get(kind, ["x,a=b c"])})
    found: dict[str, Any] = dict(settings(config).tritonserver_options)
    assert found == {name.replace("_", "-"): wanted.get(kind, ["x,a=b c"])}


def test_the_other_settings() -> None:
    made = settings(TritonConfig(exit_timeout_secs=3, allow_metrics=False, http_port=0))
    assert (made.grace_period_s, made.allow_metrics, made.http_port) == (3, False, 0)


@pytest.mark.parametrize(
    "config",
    [
        TritonConfig(response_cache_byte_size=1024 * 1024),
        TritonConfig(cache_config=["local,size=1048576"]),
        TritonConfig(cache_config=["local,size=1048576"], response_cache_byte_size=1048576),
    ],
)
def test_three_ways_to_the_response_cache(config: TritonConfig) -> None:
    assert settings(config).response_cache_size == 1 << 20


def test_two_sizes_of_the_cache_contradict_each_other() -> None:
    with pytest.raises(PyTritonValidationError, match="contradict each other"):
        settings(TritonConfig(cache_config=["local,size=1"], response_cache_byte_size=2))


def test_other_caches_are_passed_on() -> None:
    made = settings(TritonConfig(cache_config=["redis,host=h", "redis,port=1"]))
    assert made.tritonserver_options["cache-config"] == ["redis,host=h", "redis,port=1"]


def test_a_relative_trace_file_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    traced = settings(TritonConfig(trace_config=["rate=1", "triton,file=trace.json"]))
    expected = ["rate=1", f"triton,file={tmp_path / 'trace.json'}"]
    assert traced.tritonserver_options["trace-config"] == expected


def test_vertex_ai_serves_the_first_model_by_default() -> None:
    option = "vertex-ai-default-model"
    assert settings(TritonConfig(allow_vertex_ai=True)).tritonserver_options[option] == "first"
    named = TritonConfig(allow_vertex_ai=True, vertex_ai_default_model="other")
    assert settings(named).tritonserver_options[option] == "other"
