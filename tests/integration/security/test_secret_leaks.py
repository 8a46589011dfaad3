"""Secrets, payloads and tensor values appear in nothing that the daemon shows or writes.

One daemon has handled all of them: calls that succeed, calls that fail in each way, a worker that dies with a batch, a
failed registration. Then everything it shows and writes is searched.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np
import pytest
import trustme
from support.forks.prefork import command
from support.models.inference import Inference, infer_once
from support.real_daemon import RunningDaemon, eventually
from support.telemetry.metric_receiver import MetricReceiver, metric_receiver
from tritonclient.utils import InferenceServerException

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonDaemonError
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.bytes_, shape=(1,))]
Y = [Tensor(name="y", dtype=np.bytes_, shape=(1,))]
#: Generated for each run, so that no source contains them, nor anything that quotes a source.
SECRETS = {
    name: f"{name}-{uuid4().hex}"
    for name in (
        "token", "key", "wrong-token", "closure", "variable", "default",
        "input", "output", "parameter", "header", "prompt", "completion",
        "otlp-header", "webhook-secret", "webhook-path",
    )
}  # fmt: skip
_CERTIFICATE = trustme.CA().issue_cert("127.0.0.1")
#: A line from the middle of the key's file.
SECRETS["tls-key"] = _CERTIFICATE.private_key_pem.bytes().decode().splitlines()[2]
#: A model's own words are its own: clients, its log and its page get them, but not what counts and decides.
RAISED, PRINTED = (f"{name}-{uuid4().hex}" for name in ("raised", "printed"))


_PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)


class Shown(NamedTuple):
    """The texts that a daemon shows, by their source."""

    of_daemon: dict[str, str]
    of_model: dict[str, str]

    @property
    def all(self) -> dict[str, str]:
        return {**self.of_daemon, **self.of_model}


def _model(held: str, output: str, raised: str, printed: str) -> Callable[..., Any]:
    """Return a callable that follows instructions and holds a secret in its closure.

    It contains no `assert`: pytest rewrites asserts, so each worker would spend 0.1 s importing pytest.
    """

    @batch
    def obey(x: Any) -> Any:
        import os

        what = x[0, 0].decode().partition(" ")[0]
        if not held or what == "raise":
            raise ValueError(raised)
        if what == "trip":
            local_value: Any = x
            places: dict[int, Any] = {}
            return {"y": places[len(local_value)]}
        if what == "shape":
            return {"y": np.repeat(x, 3, axis=0)}
        if what == "type":
            return {"y": [[output]] * 2, "z": x}
        if what == "die":
            print(printed, flush=True)
            os._exit(9)
        return {"y": np.array([[output.encode()]], dtype=np.object_)}

    return obey


def _unwilling(held: str) -> Callable[..., Any]:
    def make() -> Any:
        places: dict[str, str] = {}
        return places[str(len(held))]

    return make


def _talk(completion: str) -> Callable[..., Any]:
    def talk(request: Any) -> Any:
        if "fail" in request.messages[-1].text:
            raise RuntimeError("it is broken")
        yield completion

    return talk


@pytest.fixture(scope="module")
def receiver() -> Iterator[MetricReceiver]:
    """An OpenTelemetry collector that requires a header."""
    with metric_receiver() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, receiver: MetricReceiver
) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("secret")
    keys = folder / "keys.toml"
    keys.write_text(f'[[key]]\nname = "tests"\nkey = "{SECRETS["key"]}"\n')
    patch = pytest.MonkeyPatch()
    patch.setenv("COLOUR_OF_THE_TEST", SECRETS["variable"])
    patch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/v1/metrics")
    patch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", f"api-key={SECRETS['otlp-header']}")
    patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    _CERTIFICATE.private_key_pem.write_to_path(folder / "tls.key")
    _CERTIFICATE.cert_chain_pems[0].write_to_path(folder / "tls.pem")
    try:
        with RunningDaemon.start(
            access_token=SECRETS["token"],
            openai_keys_file=str(keys),
            management_address="127.0.0.1:0",
            management_require_token=True,
            management_certificate=str(folder / "tls.pem"),
            management_key=str(folder / "tls.key"),
            webhooks=str(_webhooks(folder)),
            log_level="debug",
        ) as running:
            _serve(running)
            _ask_openai(running)
            _ask_everything(running)
            yield running
    finally:
        patch.undo()


def _webhooks(folder: Path) -> Path:
    """Write the webhook file with an address that nothing answers, so that each failed post is reported."""
    secret = folder / "hook.secret"
    secret.write_text(SECRETS["webhook-secret"])
    secret.chmod(0o600)
    file = folder / "hooks.toml"
    url = f"http://127.0.0.1:1/{SECRETS['webhook-path']}"
    file.write_text(f'[[webhook]]\nname = "obey"\nurl = "{url}"\nsecret_file = "{secret.name}"\n')
    return file


def _serve(daemon: RunningDaemon) -> None:
    obey = _model(SECRETS["closure"], SECRETS["output"], RAISED, PRINTED)
    client = daemon.client
    client.register(obey, "obey", X, Y, on_crash="fail", access_log=True, progress=False)
    client.register(_talk(SECRETS["completion"]), "talk", openai="chat", progress=False)
    with pytest.raises(PyTritonDaemonError):
        client.register(_unwilling(SECRETS["default"]), "no", X, Y, factory=True, progress=False)


def _ask_everything(daemon: RunningDaemon) -> None:
    for protocol in ("http", "grpc"):
        connection = Inference(protocol, getattr(daemon, protocol))

        def ask(what: str, *, rows: int = 1, connection: Inference = connection) -> Any:
            given = np.array([[f"{what} {SECRETS['input']}".encode()]] * rows, np.object_)
            parameters = {"colour": SECRETS["parameter"]}
            headers = {"x-colour": SECRETS["header"]}
            return connection.infer("obey", {"x": given}, parameters=parameters, headers=headers)

        assert ask("answer")["y"].tolist() == [[SECRETS["output"].encode()]]
        for what in ("raise", "trip", "shape", "type"):
            with pytest.raises(InferenceServerException) as failed:
                ask(what)
            assert (RAISED in str(failed.value)) == (what == "raise")
        with pytest.raises(InferenceServerException):  # Triton's own refusal
            ask("answer", rows=1000)
        connection.close()
    with pytest.raises(InferenceServerException):
        infer_once(
            daemon, "obey", {"x": np.array([[f"die {SECRETS['input']}".encode()]], np.object_)}
        )

    def serves_again() -> bool:
        (one,) = daemon.client.model("obey").info().instances
        return one.restarts > 0 and one.state == "ready"

    eventually(serves_again, "another worker serves")
    for token, status in ((SECRETS["wrong-token"], 401), (SECRETS["token"], 200)):
        given = {"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": [SECRETS["input"]]}
        body = json.dumps({"inputs": [given]}).encode()
        assert _page(daemon, "/page/infer?name=obey", token, body)[0] == status
        path = "http://" + daemon.http + "/v2/models/obey/stats"
        request = urllib.request.Request(path, headers={"triton-access-token": token})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        except urllib.error.HTTPError as error:  # only what the daemon writes about it matters
            error.close()


def _ask_openai(daemon: RunningDaemon) -> None:
    url = f"{daemon.client.status().openai_url}/chat/completions"
    for key, what, code in (
        (SECRETS["key"], "say", 200),
        (SECRETS["key"], "fail", 500),
        (SECRETS["wrong-token"], "say", 401),
    ):
        message = {"role": "user", "content": f"{what} {SECRETS['prompt']}"}
        body = json.dumps({"model": "talk", "messages": [message]}).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert SECRETS["completion"] in answer.read().decode()
                status = answer.status
        except urllib.error.HTTPError as error:
            error.close()
            status = error.code
        assert status == code, what


def _page(
    daemon: RunningDaemon, path: str, token: str, body: bytes | None = None, accept: str = ""
) -> tuple[int, str]:
    url = daemon.client.status().management_urls[0]
    headers = {"authorization": f"Bearer {token}", "accept": accept or "*/*"}
    request = urllib.request.Request(f"{url}{path}", body, headers)
    trusting = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _command(daemon: RunningDaemon, *arguments: str) -> str:
    done = command(*arguments, "--runtime-dir", daemon.config.runtime_dir)
    done.check_returncode()
    return done.stdout + done.stderr


def _checked(daemon: RunningDaemon, *arguments: str) -> str:
    """Return the output of a command for a settings file that contains the secrets."""
    config, folder = daemon.config, Path(daemon.config.webhooks or "").parent
    file = folder / "settings.toml"
    reported = {
        name: getattr(config, name) for name in ("management_key", "webhooks", "openai_keys_file")
    }
    file.write_text(
        f'access_token = "{SECRETS["token"]}"\n'
        + f'management_certificate = "{config.management_certificate}"\n'
        + "".join(f'{name} = "{value}"\n' for name, value in reported.items())
    )
    file.chmod(0o600)
    done = command(*arguments, "--config", str(file))
    return done.stdout + done.stderr


def _profile(daemon: RunningDaemon) -> str:
    """Return py-spy's profile of a worker, or the error without py-spy."""
    done = command("profile", "obey", "--seconds", "1", "--runtime-dir", daemon.config.runtime_dir)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shown(daemon: RunningDaemon, receiver: MetricReceiver) -> Shown:
    client = daemon.client

    def ask(path: str, accept: str = "") -> str:
        return _page(daemon, path, SECRETS["token"], accept=accept)[1]

    of_daemon = {
        "events": repr(client.events(limit=1000)),
        "explain": "".join(repr(client.explain(name, 1000)) for name in ("obey", "talk", "no")),
        "figures": repr(client.metrics()),
        "requests": _requests(daemon),
        "access log": Path(client.requests("obey").file).read_text(encoding="utf-8"),
        "page": ask("/page/view.json"),
        "openapi": ask("/page/openapi.json"),
        "metrics": ask("/metrics"),
        "openmetrics": ask("/metrics", "application/openmetrics-text"),
        "protobuf": ask("/metrics", _PROTOBUF),
        "OTLP": _sent(receiver),
        "top": _command(daemon, "top", "--json"),
        "top --once": _command(daemon, "top", "--once"),
        "explain, the command": _command(daemon, "explain", "obey"),
        "status, the command": _command(daemon, "status"),
        "doctor": _checked(daemon, "doctor"),
        "print-config": _checked(daemon, "start", "--print-config"),
        "profile": _profile(daemon),
        "event files": _files(daemon.config.state_path, "**/*.jsonl"),
        "command lines": "\n".join(daemon.commands().values()),
    }
    of_model = {
        "daemon's log": "\n".join(client.logs(lines=100_000)),
        "output": daemon.said(),
        "status": msgspec.json.encode(client.status()).decode(),
        "model's log": "\n".join(client.logs("obey", 100_000)),
        "other log": "\n".join(client.logs("talk", 100_000)),
        "page of the model": ask("/page/model.json?name=obey"),
        "page of the other": ask("/page/model.json?name=talk"),
        "log files": _files(Path(daemon.config.runtime_dir), "logs/*"),
    }
    return Shown(of_daemon, of_model)


def _sent(receiver: MetricReceiver) -> str:
    """Return what the collector has received, once it is complete."""
    before = receiver.received
    eventually(lambda: receiver.received > before + 1, "no metrics are sent")
    return repr(list(receiver.points)) + repr(receiver.resource)


def _requests(daemon: RunningDaemon) -> str:
    """Return the slowest and the failed requests once the last of them are recorded."""
    eventually(lambda: daemon.client.requests("obey").failed, "the failed ones are told")
    return "obey" + repr(daemon.client.requests("obey"))


def _files(folder: Path, pattern: str) -> str:
    found = [path for path in folder.glob(pattern) if path.is_file()]
    return "\n".join(path.read_text("utf-8", "replace") for path in found)


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_is_shown(shown: Shown, secret: str) -> None:
    assert [where for where, text in shown.all.items() if SECRETS[secret] in text] == []


def test_every_searched_place_has_content(shown: Shown) -> None:
    """An empty text would pass the other tests."""
    words = {
        "other log": "RuntimeError",
        "page of the other": "talk",
        "command lines": "worker",
        "doctor": "tritonserver",
        "print-config": "management_key",
    }
    for where, text in shown.all.items():
        assert words.get(where, "obey") in text, where


def test_a_models_own_output_is_only_in_logs(shown: Shown) -> None:
    """Exceptions and prints: the log, the page of the model, the last lines of an exited worker."""
    for words in (RAISED, PRINTED):
        assert [where for where, text in shown.of_daemon.items() if words in text] == []
        for where in ("model's log", "page of the model", "log files"):
            assert words in shown.of_model[where], where
    assert RAISED in shown.of_model["daemon's log"]
    status = json.loads(shown.of_model["status"])
    instances = [instance for model in status["models"] for instance in model["instances"]]
    last_lines = [end.pop("lines") for instance in instances for end in instance["exits"]]
    assert PRINTED in json.dumps(last_lines)
    assert [words for words in (RAISED, PRINTED) if words in json.dumps(status)] == []
