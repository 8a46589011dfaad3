"""The dashboard's URLs, and the documents behind them."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import msgspec
import pytest
from aiohttp import web
from fakes.dashboard_daemon import CONFIG, HOSTILE, STREAM, Daemon, info, status
from support.models.figures import model, snapshot, work

from pytriton._protocol.messages.client import Explanation, Finding
from pytriton._protocol.messages.metrics import Histogram
from pytriton.dispatcher.telemetry.dashboard.examples import example_request, inputs, snippets
from pytriton.dispatcher.telemetry.dashboard.history import POINTS, SPARK_POINTS, History
from pytriton.dispatcher.telemetry.dashboard.model_view import bars, model_view, overview
from pytriton.dispatcher.telemetry.dashboard.openapi import document
from pytriton.dispatcher.telemetry.dashboard.routes import HEADERS, Page

_OWNER = {"authorization": "Bearer right"}


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/page.js",
        "/page/page.css",
        "/page/icon.svg",
        "/page/view.json",
        "/favicon.ico",
    ],
)
def test_every_answer_has_the_security_headers(daemon: Daemon, path: str) -> None:
    answer = daemon.ask("GET", path)
    assert answer.status_code == 200
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_page_has_no_inline_code_or_style(daemon: Daemon) -> None:
    text = daemon.ask("GET", "/page/").text
    assert text.count("<script") == text.count('<script src="page.js" defer></script>') == 1
    assert "<style" not in text
    assert "style=" not in text
    assert " on" + "click=" not in text
    assert "innerHTML" not in daemon.ask("GET", "/page/page.js").text


def test_browsers_find_an_icon(daemon: Daemon) -> None:
    """Without one, their consoles show a 404."""
    assert (
        '<link rel="icon" type="image/svg+xml" href="icon.svg">' in daemon.ask("GET", "/page/").text
    )
    for path in ("/page/icon.svg", "/favicon.ico"):
        answer = daemon.ask("GET", path)
        assert answer.headers["content-type"] == "image/svg+xml"
        drawn = {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(answer.text).iter()}
        assert drawn == {"svg", "rect", "path"}  # no script, no style


@pytest.mark.parametrize("path", ["/page/nothing", "/page/../routes.py", "/page/%2e%2e/routes.py"])
def test_other_paths_are_not_found(daemon: Daemon, path: str) -> None:
    assert daemon.ask("GET", path).status_code == 404


def test_the_root_redirects_to_the_page(daemon: Daemon) -> None:
    answer = daemon.ask("GET", "/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/page/")


def test_all_models_are_shown_with_their_plots(daemon: Daemon) -> None:
    found = daemon.ask("GET", "/page/view.json").json()
    assert "ready, pid 1" in found["headline"]
    assert [(one["model"], one["instance"]) for one in found["rows"]] == [
        ("digits", ""),
        ("digits", "0"),
        (HOSTILE, ""),
        (HOSTILE, "0"),
    ]
    assert [len(one["points"]) for one in found["rows"]] == [1, 0, 1, 0]


def test_many_viewers_cost_one_snapshot() -> None:
    daemon = Daemon()

    async def run() -> None:
        async with daemon.client() as client:
            await asyncio.gather(*(client.get("/page/view.json") for _ in range(10)))

    asyncio.run(run())
    assert daemon.taken == 1


def test_one_model_is_shown_with_its_errors_and_its_log(daemon: Daemon) -> None:
    daemon.ask("GET", "/page/view.json")
    asked = {"params": {"name": HOSTILE}, "headers": _OWNER}
    found = daemon.ask("GET", "/page/model.json", **asked).json()
    assert (found["name"], found["is_private"], found["config"]) == (HOSTILE, False, CONFIG)
    assert [one["event"] for one in found["errors"]] == [HOSTILE]
    assert found["exits"] == [{"instance": 0, "last_exit": "signal 11", "restarts": 2}]
    assert [one["event"] for one in found["log"]] == ["worker started", HOSTILE, "not a record"]
    assert found["histograms"]["call_s"][0][1] == 1
    assert set(found["snippets"]) == {"curl", "tritonclient", "pytriton"}
    assert [(one["id"], one["compute_ns"]) for one in found["slowest"]] == [(HOSTILE, 48_200_000)]
    assert [(one["id"], one["status"]) for one in found["failed"]] == [("order-18", "callable")]
    found = daemon.ask("GET", "/page/model.json?name=digits", headers=_OWNER).json()
    assert (found["slowest"], found["failed"]) == ([], [])


def test_without_the_token_neither_logs_nor_configuration_are_shown(daemon: Daemon) -> None:
    """Anyone who reaches the port sees names, states and numbers."""
    daemon.ask("GET", "/page/view.json")
    for headers in ({}, {"authorization": "Bearer wrong"}):
        found = daemon.ask(
            "GET", "/page/model.json", params={"name": HOSTILE}, headers=headers
        ).json()
        assert found["is_private"]
        private = ("error", "config", "slowest", "failed", "errors", "exits", "log")
        assert [found[name] for name in private] == ["", {}, [], [], [], [], []]
        assert found["histograms"]["call_s"][0][1] == 1


def test_clients_of_the_unix_socket_see_everything(daemon: Daemon, tmp_path: Path) -> None:
    """Only the daemon's user can connect to it."""

    async def run() -> Any:
        app = web.Application()
        app.add_routes(daemon.page.routes())
        runner = web.AppRunner(app)
        await runner.setup()
        place = str(tmp_path / "management.sock")
        await web.UnixSite(runner, place).start()
        over = httpx.AsyncHTTPTransport(uds=place)
        async with httpx.AsyncClient(transport=over, base_url="http://localhost") as client:
            found = await client.get("/page/model.json", params={"name": HOSTILE})
        await runner.cleanup()
        return found.json()

    assert asyncio.run(run())["log"][0]["event"] == "worker started"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "view.json"), ("GET", "model.json"), ("GET", "openapi.json"), ("POST", "infer")],
)
def test_a_busy_daemon_is_reported(daemon: Daemon, method: str, path: str) -> None:
    async def busy() -> Any:
        raise asyncio.TimeoutError

    daemon.page = Page(dataclasses.replace(daemon.sources, snapshot=busy, status=busy))
    answer = daemon.ask(method, f"/page/{path}?name=digits", headers=_OWNER)
    assert answer.status_code == 503
    assert "busy" in answer.json()["error"]


def test_invalid_unicode_in_a_log_is_escaped(daemon: Daemon) -> None:
    daemon.lines = ['{"event": "cannot open \\udcff", "level": "error"}']
    answer = daemon.ask("GET", "/page/model.json?name=digits", headers=_OWNER)
    assert answer.status_code == 200
    assert r"cannot open \udcff" in answer.text


def test_an_unknown_model_is_not_found(daemon: Daemon) -> None:
    answer = daemon.ask("GET", "/page/model.json", params={"name": "nobody"})
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        "no model 'nobody' is registered",
    )


def test_charts_cover_half_an_hour_of_current_models() -> None:
    history = History()
    for second in range(POINTS + 5):
        history.add(snapshot(1010 + second, model("a", work(second)), model("b", work(1))))
    series = history.series("a").as_dict()
    assert {len(column) for column in series.values()} == {POINTS}
    assert series["at"][-1] == 1010 + POINTS + 4
    assert (series["requests_s"][-1], series["failures_s"][-1]) == (1.0, 0.0)
    assert series["p50"][-1] == pytest.approx(0.005, rel=0.3)
    assert (series["waiting"][-1], series["resident"][-1]) == (3.0, 412e6)
    assert series["p99"][0] is not None
    assert len(history.spark("a")) == SPARK_POINTS
    total = history.total.as_dict()
    assert (total["requests_s"][-1], total["waiting"][-1], total["resident"][-1]) == (1.0, 6, 824e6)
    history.add(snapshot(2000, model("a", work(1))))
    assert history.series("b").as_dict()["at"] == []
    assert overview(History(), private=False)["headline"] == "starting"


def test_explanations_are_shown_and_events_only_to_the_owner(
    daemon: Daemon,
) -> None:
    finding = Finding("degraded", "crash_loop", f"it loops: {HOSTILE}", "Mend it.", instance=0)
    daemon.explanation = Explanation("digits", "digits is degraded: …", [finding], daemon.events)
    asked: dict[str, Any] = {"params": {"name": "digits"}}
    hidden = daemon.ask("GET", "/page/model.json", **asked).json()
    assert (hidden["verdict"], hidden["findings"], hidden["events"]) == ("", [], [])
    found = daemon.ask("GET", "/page/model.json", headers=_OWNER, **asked).json()
    assert found["verdict"] == "digits is degraded: …"
    assert [(one["severity"], one["text"], one["advice"]) for one in found["findings"]] == [
        ("degraded", f"it loops: {HOSTILE}", "Mend it.")
    ]
    newest, oldest = found["events"]
    assert (newest["says"], newest["instance"], newest["reason"]) == (
        "worker exited unexpectedly",
        0,
        HOSTILE,
    )
    assert (newest["numbers"], newest["level"]) == ("pid 8", "warning")
    assert oldest["who"] == "user ann, process 7 (python a.py)"


def test_the_overview_shows_errors_only_to_the_owner(daemon: Daemon) -> None:
    """A problem may quote the exception of a callable."""
    failed = snapshot(
        1010, model("digits", work(50), last_exit="RuntimeError: secret"), model("b", work(1))
    )
    problems = ["model digits: it loops: RuntimeError: secret", "the disk is full"]
    daemon.figures = msgspec.structs.replace(
        failed, daemon=msgspec.structs.replace(failed.daemon, problems=problems)
    )
    found = daemon.ask("GET", "/page/view.json").json()
    assert "secret" not in str(found)
    assert found["problems"] == [
        "model digits: shown with the access token",
        "the daemon: shown with the access token",
    ]
    assert [row["last_exit"] for row in found["rows"] if row["model"] == "b"] == ["", ""]
    owners = daemon.ask("GET", "/page/view.json", headers=_OWNER).json()
    assert owners["problems"] == problems
    assert owners["rows"][0]["last_exit"] == "RuntimeError: secret"


def test_events_and_the_audit_log_are_for_the_owner(daemon: Daemon) -> None:
    assert daemon.ask("GET", "/page/events.json").json() == {"is_private": True, "events": []}
    found = daemon.ask("GET", "/page/events.json", headers=_OWNER).json()["events"]
    assert [one["kind"] for one in found] == ["crashed", "registered"]  # the newest first
    audit = daemon.ask("GET", "/page/events.json?asked=1", headers=_OWNER).json()["events"]
    assert [one["kind"] for one in audit] == ["registered"]


def test_a_histogram_has_few_bars_and_covers_all_values() -> None:
    buckets = [0, 0, *range(1, 101), 0]
    found = bars(Histogram(1.0, buckets), [float(number) for number in range(len(buckets) - 1)])
    assert len(found) <= 24
    assert sum(count for _, count in found) == sum(buckets)
    assert bars(Histogram(), [1.0]) == []
    assert bars(Histogram(1.0, [0, 3]), [1.0]) == [(1.0, 3)]


def test_a_model_without_metrics_has_no_histogram() -> None:
    found = model_view("digits", status(info("digits")), History(), None)
    assert found is not None
    assert found["histograms"] == {}
    assert model_view("nobody", status(), History(), None) is None


def test_an_example_matches_the_declaration() -> None:
    assert [one.name for one in inputs(CONFIG)] == ["x", "text"]
    assert example_request(CONFIG) == {
        "inputs": [{"name": "x", "shape": [1, 1, 3], "datatype": "FP32", "data": [0.0] * 3}]
    }
    huge = {"input": [{"name": "x", "data_type": "TYPE_UINT8", "dims": [1000, 1000]}]}
    assert example_request(huge)["inputs"][0]["data"] == []


def test_snippets_can_be_run_unchanged() -> None:
    found = snippets("it's", CONFIG, "http://127.0.0.1:8000")
    for text in (found["tritonclient"], found["pytriton"]):
        compile(text, "snippet", "exec")
    assert "http://127.0.0.1:8000/v2/models/it%27s/infer" in shlex.split(found["curl"])
    half = {"input": [{"name": "x", "data_type": "TYPE_BF16", "dims": [1]}], "output": []}
    assert set(snippets("h", half, "http://h")) == {"tritonclient", "pytriton"}  # JSON has no BF16
    assert set(snippets("s", STREAM, "http://h")) == {"curl"}
    assert "generate_stream" in snippets("s", STREAM, "http://h")["curl"]
    assert snippets("s", CONFIG, "") == {}


def test_the_api_document_has_every_model() -> None:
    models = [info("digits"), info(HOSTILE), info("stream", STREAM)]
    found = document(models, "http://127.0.0.1:8000", "1.0")
    assert found["openapi"] == "3.1.0"
    assert "/v2/models/digits/infer" in found["paths"]
    assert "/v2/models/%3Cscript%3Ealert%281%29%3C%2Fscript%3E/infer" in found["paths"]
    assert "/v2/models/stream/generate_stream" in found["paths"]
    asked = found["paths"]["/v2/models/digits/infer"]["post"]["requestBody"]
    (media,) = asked["content"].values()
    assert media["example"] == example_request(CONFIG)
    tensors = media["schema"]["properties"]["inputs"]["items"]["oneOf"]
    names = [one["properties"]["name"]["const"] for one in tensors]
    assert names == ["x", "text"]
    assert "servers" not in document([], "", "1.0")
