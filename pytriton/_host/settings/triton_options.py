"""The options of tritonserver, and which of them the daemon sets itself.

Source: `tritonserver --help` of Triton 2.51, the version that the daemon downloads
(docs/contributing/triton-notes.md). A user's own tritonserver of another version may have more options. Those are passed
to NVIDIA's executable after a check against its `--help` (pytriton/_host/install/server_runtime.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Union

from pytriton._host.settings import parsing as values
from pytriton._host.settings.parsing import nearest

#: Name without dashes -> its value, or a list of values if it may be repeated.
Options = dict[str, Union[str, list[str]]]

_SINGLE = """
    id log-verbose log-info log-warning log-error log-format log-file exit-on-error
    strict-readiness model-load-thread-count model-load-retry-count
    model-namespacing enable-peer-access reuse-http-port http-header-forward-pattern
    http-thread-count reuse-grpc-port grpc-header-forward-pattern grpc-infer-allocation-pool-size
    grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
    grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
    grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
    grpc-max-connection-age grpc-max-connection-age-grace allow-sagemaker sagemaker-port
    sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port
    vertex-ai-thread-count vertex-ai-default-model cache-directory allow-gpu-metrics allow-cpu-metrics
    metrics-interval-ms repoagent-directory rate-limit pinned-memory-pool-byte-size
    min-supported-compute-capability buffer-manager-thread-count trace-file
    trace-rate trace-count trace-log-frequency repository-poll-secs
"""
_REPEATABLE = """
    metrics-config trace-config trace-level
    backend-config cache-config rate-limit-resource cuda-memory-pool-byte-size
    cuda-virtual-address-size host-policy model-load-gpu-limit
"""
#: Options that later versions have added.
LATER = frozenset({"grpc-infer-thread-count", "grpc-max-response-pool-size", "http-max-input-size"})
#: Options that name a file that tritonserver writes.
_FILES = ("log-file", "trace-file")
#: Interval between checks of the model repository for changed files; the daemon does this instead of tritonserver.
REPOSITORY_POLL = "repository-poll-secs"
_DEFAULT_REPOSITORY_POLL_S = 15.0  #: as in tritonserver
#: Options that may be given once.
SINGLE = frozenset(_SINGLE.split())
#: Options that may be repeated.
REPEATABLE = frozenset(_REPEATABLE.split())

_SETTING = "use the setting {}"
_RESTRICTED = "use the settings restricted_endpoints and access_token"
_COMPLETE = "Triton's own defaults apply to whatever a registered model's configuration omits"
#: Options that the daemon sets itself -> what to use instead.
OURS: Mapping[str, str] = {
    "allow-http": _SETTING.format("allow_http"),
    "allow-grpc": _SETTING.format("allow_grpc"),
    "allow-metrics": _SETTING.format("allow_metrics"),
    "http-address": _SETTING.format("http_address"),
    "http-port": _SETTING.format("http_port"),
    "grpc-address": _SETTING.format("grpc_address"),
    "grpc-port": _SETTING.format("grpc_port"),
    "metrics-address": _SETTING.format("metrics_address"),
    "metrics-port": _SETTING.format("metrics_port"),
    "http-restricted-api": _RESTRICTED,
    "grpc-restricted-protocol": _RESTRICTED,
    "allow-client-shm": _SETTING.format("allow_client_shm"),
    "exit-timeout-secs": _SETTING.format("grace_period_s"),
    "response-cache-byte-size": _SETTING.format("response_cache_size"),
    "backend-directory": "the daemon creates its own, which includes tritonserver's Python backend",
    "model-repository": _SETTING.format("model_repository"),
    "model-store": _SETTING.format("model_repository"),
    "model-control-mode": _SETTING.format("model_control_mode"),
    "load-model": _SETTING.format("load_model"),
    "model-config-name": "a model's configuration is part of its registration",
    "disable-auto-complete-config": _COMPLETE,
    "strict-model-config": _COMPLETE,
    "help": "run the tritonserver binary itself with --help",
}
KNOWN = SINGLE | REPEATABLE | LATER
#: An unknown name this similar to a known one counts as a typo, not as an option of a later version.
_TYPO = 0.85
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: tritonserver ignores spaces around the names.
_REGIONS = re.compile(r"\s*python\s*,\s*shm-region-prefix-name\s*(=|$)")


def read_options(raw: object) -> Options:
    """Parse options of tritonserver.

    Args:
        raw: a TOML table (name to value or list of values), text that is split as a shell would
            ("log-verbose=1 backend-config=python,x=1"), or a list of NAME=VALUE.

    Raises:
        ValueError: an unknown name, an option that the daemon sets itself, or an invalid value.
    """
    options: Options = {}
    for name, value in _pairs(raw):
        known = _checked_name(name)
        text = _text(known, value)
        before = options.get(known)
        if before is None:
            options[known] = [text] if known in REPEATABLE else text
        elif isinstance(before, list):
            before.append(text)
        else:
            raise ValueError(f"{known} is given twice, but tritonserver accepts it only once")
    return options


def _pairs(raw: object) -> Iterable[tuple[str, object]]:
    if isinstance(raw, Mapping):
        for name, value in raw.items():
            if isinstance(value, list):
                yield from ((str(name), one) for one in value)
            else:
                yield str(name), value
        return
    words = _split(raw) if isinstance(raw, str) else raw
    if not isinstance(words, (list, tuple)):
        raise ValueError(f"{raw!r} is neither a table of options nor NAME=VALUE")
    for word in words:
        name, equals, value = str(word).partition("=")
        if not equals:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        yield name, value


def _split(raw: str) -> list[str]:
    try:
        return shlex.split(raw)
    except ValueError as error:
        raise ValueError(f"{raw!r} cannot be split like a shell command: {error}") from None


def _checked_name(name: str) -> str:
    name = name.strip().lstrip("-")
    if name in OURS:
        raise ValueError(f"tritonserver's option {name} is set by the daemon; {OURS[name]}")
    if name not in KNOWN and (
        not _NAME.fullmatch(name) or nearest(name, KNOWN | set(OURS), cutoff=_TYPO)
    ):
        raise ValueError(f"tritonserver has no option {name!r}{_hint(name)}")
    return name


def repository_poll_s(options: Options) -> float:
    """Return the interval between checks of the model repository for changed files, in seconds."""
    return float(str(options.get(REPOSITORY_POLL, _DEFAULT_REPOSITORY_POLL_S)))


def beyond_pinned(options: Options) -> list[str]:
    """Return the options that the downloaded tritonserver lacks but another version may have."""
    return sorted(name for name in options if name not in SINGLE | REPEATABLE)


def refuse_unknown(options: Iterable[str], known: Iterable[str]) -> None:
    """Check that a tritonserver supports all these options.

    Raises:
        ValueError: an option is not supported; the text names it.
    """
    has = set(known)
    for name in options:
        if name not in has:
            raise ValueError(f"this tritonserver has no option {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    return nearest(name, KNOWN | set(OURS))


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (str, int, float)):
        text = str(value)
    else:
        raise ValueError(f"the value of {name} must be text, a number, true or false")
    if "\0" in text or "\n" in text:
        raise ValueError(f"the value of {name} contains a line break or NUL")
    if not text:
        raise ValueError(f"the value of {name} is empty; leave the option out to keep its default")
    if name == "http-max-input-size" and not text.isdecimal():
        raise ValueError(f"the value of {name} is {text!r}, but must be a number of bytes")
    if name == REPOSITORY_POLL:
        try:
            values.number(0).read(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if name == "cache-config" and text.partition(",")[0] == "local":
        raise ValueError(
            "the setting response_cache_size configures the local response cache; use it instead"
        )
    if name == "backend-config" and _REGIONS.match(text):
        raise ValueError(
            "the daemon sets the prefix of the Python backend's shared memory (shm-region-prefix-name) and removes "
            "everything in /dev/shm with that prefix; remove the option"
        )
    _check_path(name, text)
    return text


def _check_path(name: str, text: str) -> None:
    """Refuse a relative path: tritonserver would write the file into one of the daemon's directories."""
    if name == "trace-config":
        key, _, text = text.partition("=")
        if key.replace(" ", "") != "triton,file":
            return
    elif name not in _FILES:
        return
    if not text.startswith("/"):
        raise ValueError(
            f"{name} names the file {text!r}: tritonserver runs in a directory of the daemon, so use "
            "an absolute path"
        )
