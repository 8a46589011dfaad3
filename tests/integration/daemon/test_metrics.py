"""/metrics of the management server: with tritonserver's metrics, with access control, and despite hung workers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from support.models.inference import Inference, infer_once
from support.models.tensors import X, Y
from support.ports import lasting_port
from support.real_daemon import RunningDaemon, eventually
from support.telemetry.metric_receiver import MetricReceiver, metric_receiver

from pytriton.decorators import batch

ROWS = np.zeros((3, 2), np.float32)
MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def receiver() -> Iterator[MetricReceiver]:
    """An OpenTelemetry collector, configured by this process's environment variables."""
    with metric_receiver() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{found.url}/v1/metrics")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield found


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, receiver: MetricReceiver
) -> Iterator[RunningDaemon]:
    """A daemon with a model that has served; its calls wait while a file exists."""
    hold = tmp_path_factory.mktemp("hold") / "hold"
    with RunningDaemon.start(
        management_address="127.0.0.1:0", management_require_token=True
    ) as running:
        running.client.register(_double(hold), "double", X, Y, progress=False)
        _infer(running)

        def is_counted() -> bool:  # by the worker and by the proxy, after the response
            text = scrape(running)
            durations = 'pytriton_call_duration_seconds_count{model="double",model_instance="0",version="1"} 1'
            successes = 'nv_inference_request_success{model="double",version="1"} 1'
            return durations in text and successes in text

        eventually(is_counted, "the call is counted")
        yield running


def _double(hold: Path) -> Any:
    @batch
    def double(x: Any) -> Any:
        import time

        while hold.exists():
            time.sleep(0.01)
        return {"y": x * 2}

    return double


def _infer(daemon: RunningDaemon) -> None:
    infer_once(daemon, "double", {"x": ROWS})


def scrape(daemon: RunningDaemon, **headers: str) -> str:
    url = daemon.client.status().management_urls[0]
    bearer = {"Authorization": f"Bearer {daemon.client.access_token}"}
    request = urllib.request.Request(f"{url}/metrics", headers={**bearer, **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def value(text: str, start: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(start)).split()[-1])


def test_served_requests_are_counted_beside_tritonservers_metrics(daemon: RunningDaemon) -> None:
    text = scrape(daemon)
    instance = 'model="double",model_instance="0",version="1"'
    assert value(text, f"pytriton_rows_total{{{instance}}}") == 3 * value(
        text, f"pytriton_requests_total{{{instance}}}"
    )
    assert value(text, f"pytriton_call_duration_seconds_count{{{instance}}}") >= 1
    # What the proxy says of a batch arrives: how long it waited, and its rows.
    waits = value(text, f"pytriton_batch_wait_seconds_count{{{instance}}}")
    assert waits == value(text, f"pytriton_calls_total{{{instance}}}")
    assert value(text, f"pytriton_worker_resident_bytes{{{instance}}}") > 1 << 20
    assert value(text, f"pytriton_load_seconds{{{instance}}}") > 0
    assert value(text, 'nv_inference_request_success{model="double",version="1"}') >= 1


def test_metrics_are_exported_to_a_collector(
    daemon: RunningDaemon, receiver: MetricReceiver
) -> None:
    instance = {"model": "double", "version": "1", "model_instance": "0"}
    series = {
        "pytriton_rows": instance,
        "nv_inference_request_success": {"model": "double", "version": "1"},
    }

    def reported() -> bool:
        keys = [(name, frozenset(labels.items())) for name, labels in series.items()]
        return all(key in receiver.points and receiver.points[key].as_double > 0 for key in keys)

    eventually(reported, lambda: f"it was not sent; there are {sorted(receiver.metrics)}")
    assert receiver.resource["service.name"] == "pytriton-daemon"


def test_counters_restart_with_a_new_tritonserver(
    daemon: RunningDaemon, receiver: MetricReceiver
) -> None:
    """Otherwise receivers would see counters that decrease."""
    key = "nv_inference_request_success", frozenset({("model", "double"), ("version", "1")})
    eventually(lambda: key in receiver.points, "it was not sent")
    before = receiver.points[key].start_time_unix_nano
    server = daemon.client.status().server
    assert server.pid is not None
    assert before / 1e9 == pytest.approx(psutil.Process(server.pid).create_time(), abs=2)
    os.kill(server.pid, signal.SIGKILL)

    def begun_anew() -> bool:
        return bool(receiver.points[key].start_time_unix_nano > before)

    eventually(begun_anew, lambda: str(receiver.points[key]))
    _infer(daemon)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not here")
def test_promtool_accepts_the_metrics(daemon: RunningDaemon) -> None:
    assert PROMTOOL is not None
    ours = scrape(daemon).partition("# HELP nv_")[0]  # NVIDIA's counters lack `_total`
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=ours, capture_output=True, text=True, check=False
    )
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)


def test_openmetrics_is_sent_on_request(daemon: RunningDaemon) -> None:
    text = scrape(daemon, Accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert "pytriton_calls_total{" in text
    assert "nv_inference_request_success{" in text


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic x", "Bearer \xe9"])
def test_metrics_require_the_token(daemon: RunningDaemon, given: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(daemon, Authorization=given)
    with refused.value as answer:
        assert answer.code == 401
        assert b"pytriton_" not in answer.read()


def test_a_hung_worker_holds_up_no_scrape(daemon: RunningDaemon, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    daemon.client.register(_double(hold), "held", X, Y, progress=False)
    hold.touch()
    connection = Inference("http", daemon.http)
    asking = threading.Thread(target=connection.infer, args=("held", {"x": ROWS}))
    asking.start()
    try:
        instance = 'model="held",model_instance="0",version="1"'

        def begun() -> bool:
            return value(scrape(daemon), f"pytriton_calls_total{{{instance}}}") == 1

        eventually(begun, "the call never began")
        text = scrape(daemon)
        assert value(text, f"pytriton_call_duration_seconds_count{{{instance}}}") == 0
        assert value(text, f"pytriton_busy_seconds_total{{{instance}}}") > 0
        assert value(text, f"pytriton_batch_running_seconds{{{instance}}}") > 0
    finally:
        hold.unlink()
        asking.join()
        connection.close()


def _counting() -> Any:
    from prometheus_client import Counter

    seen = Counter("rows_seen", "Rows.", ["kind"])

    @batch
    def counting(x: Any) -> Any:
        seen.labels("all").inc(len(x))
        return {"y": x}

    return counting


def test_custom_counters_survive_worker_exits(
    daemon: RunningDaemon,
) -> None:
    daemon.client.register(_counting, "counting", X, Y, factory=True, progress=False)
    series = 'rows_seen_total{kind="all",model="counting",model_instance="0",version="1"}'
    connection = Inference("http", daemon.http)

    def reported() -> float:
        return value(scrape(daemon), series) if series in scrape(daemon) else 0

    connection.infer("counting", {"x": ROWS})
    eventually(lambda: reported() == len(ROWS), "it was not told")
    (instance,) = daemon.client.model("counting").instances
    assert instance.pid is not None
    os.kill(instance.pid, signal.SIGKILL)
    connection.infer("counting", {"x": ROWS})
    eventually(lambda: reported() == 2 * len(ROWS), "it did not go on")
    connection.close()


@pytest.mark.timeout(600)  # it drops scrapes that take long, and dozens of queries are sent
@pytest.mark.skipif(PROMTOOL is None, reason="Debian's package prometheus is not here")
def test_prometheus_scrapes_it_and_every_query_has_data(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """With the shipped rules and dashboard, under load."""
    with _start_prometheus(daemon, tmp_path) as ask:
        without_data = _queries()

        def have_data() -> bool:
            _infer(daemon)
            without_data[:] = [query for query in without_data if not ask(query)]
            return not without_data

        eventually(have_data, lambda: f"no data: {without_data}", 200)
        for alert in _expressions("alerts.yml"):
            ask(alert)  # it can be evaluated


@pytest.mark.skipif(PROMTOOL is None, reason="Debian's package prometheus is not here")
def test_prometheus_takes_native_histograms(daemon: RunningDaemon, tmp_path: Path) -> None:
    counts = 'histogram_count(pytriton_call_duration_seconds{model="double"})'
    quantile = 'histogram_quantile(0.9, pytriton_call_duration_seconds{model="double"})'
    with _start_prometheus(daemon, tmp_path, "native-histograms") as ask:
        found: Any = eventually(lambda: ask(counts), "no native histogram was taken", 200)
        assert float(found[0]["value"][1]) >= 1
        found = ask(quantile)
        assert 0 < float(found[0]["value"][1]) < 100
        assert ask("pytriton_calls_total")
        assert ask("nv_inference_request_success")


#: Of what this daemon's models do not have.
_HAVE_NO_DATA = ("gpu_bytes", "memory_limit", "first_response", "response_interval")


def _expressions(file: str) -> list[str]:
    rules = yaml.safe_load((MONITORING / file).read_text(encoding="utf-8"))
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def _queries() -> list[str]:
    """Return the queries of the dashboard and of the recording rules."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = {"$model": ".*", "$server": ".*", "$__rate_interval": "1m"}
    for name, value in variables.items():
        asked = [query.replace(name, value) for query in asked]
    asked += _expressions("rules.yml")
    return [query for query in asked if not any(part in query for part in _HAVE_NO_DATA)]


@contextlib.contextmanager
def _start_prometheus(
    daemon: RunningDaemon, folder: Path, *features: str
) -> Iterator[Callable[[str], list[object]]]:
    """Run a Prometheus that scrapes a daemon every two seconds; yield a function that sends it queries."""
    url = daemon.client.status().management_urls[0]
    config = {
        "global": {"evaluation_interval": "500ms"},
        "rule_files": [str(MONITORING / "rules.yml"), str(MONITORING / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "pytriton",
                "scrape_interval": "2s",
                "scrape_timeout": "2s",  # a busy machine may take long, and it cannot be longer
                "authorization": {"credentials": daemon.client.access_token},
                "static_configs": [{"targets": [url.partition("//")[2]]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    port = lasting_port()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                *(f"--enable-feature={one}" for one in features),
            ],
            stdout=log,
            stderr=log,
        )

    def ask(query: str) -> list[object]:
        asked = urllib.parse.urlencode({"query": query})
        address = f"http://127.0.0.1:{port}/api/v1/query?{asked}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            found: list[object] = json.loads(answer.read())["data"]["result"]
            return found

    def listens() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            ask("1")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True

    try:
        eventually(listens, "Prometheus does not answer")
        yield ask
    finally:
        process.kill()
        process.wait()


def test_the_metrics_snapshot_includes_tritonservers_queue(daemon: RunningDaemon) -> None:
    model = next(one for one in daemon.client.metrics().models if one.name == "double")
    assert [(one.version, one.pending) for one in model.queue] == [(1, 0)]
    assert model.queue[0].succeeded >= 1
