"""What `pytriton-daemon status` prints about tritonserver."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from fakes.fake_dispatcher import status

from pytriton._cli.tables import print_fleet_models, print_models, print_status
from pytriton._protocol import messages
from pytriton.fleet import FleetClient
from pytriton.fleet.placement_status import FleetModel


@pytest.mark.parametrize(
    ("binary", "frontend"),
    [
        ("/c/native-frontend/1f/pytriton-frontend", ", native frontend\n"),
        ("/s/bin/tritonserver", ", NVIDIA's frontend\n"),
        ("", " 2.51.0\n"),
    ],
)
def test_the_frontend_is_named(
    capsys: pytest.CaptureFixture[str], binary: str, frontend: str
) -> None:
    said = status()
    server = msgspec.structs.replace(said.server, binary=binary, version="2.51.0", pid=7)
    print_status(msgspec.structs.replace(said, server=server))
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "tritonserver" in one]
    assert f"{line.rstrip()}\n".endswith(frontend)


def test_control_sequences_of_a_callable_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    end = "RuntimeError: \x1b[2J\x07"
    one = messages.InstanceInfo(0, "backoff", None, last_exit=end)
    models = [
        messages.ModelInfo("m", 1, "not_ready", [one]),
        messages.ModelInfo("kept", 1, "failed", [], error=end),
    ]
    print_status(msgspec.structs.replace(status(), models=models, problems=[end]))
    text = capsys.readouterr().out
    assert text.count(r"RuntimeError: \x1b[2J\x07") == 3
    assert "\x1b" not in text


_LOOPS = "instance 0 is in a crash loop: 3 exits in a row"


def _degraded(name: str = "m", why: str = _LOOPS) -> messages.ModelInfo:
    there = [messages.InstanceInfo(0, "backoff", None), messages.InstanceInfo(1, "ready", 5)]
    return messages.ModelInfo(name, 1, "degraded", there, error=why)


def test_a_degraded_model_is_shown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    not_willing = _degraded("other", "instance 1: the model's own is_ready says no: no index")
    problem = f"model m: {_LOOPS}; see pytriton-daemon logs m"
    models = [_degraded(), not_willing]
    print_status(msgspec.structs.replace(status(), models=models, problems=[problem]))
    text = capsys.readouterr().out
    assert text.count("ready, model degraded") == 2
    assert text.count(_LOOPS) == 1  # the daemon's problem already says so
    assert "model other is degraded: instance 1: the model's own is_ready says no: no index" in text
    print_models(models)
    assert f"\nm is degraded: {_LOOPS}\n" in capsys.readouterr().out


def test_a_fleet_shows_on_which_nodes_a_model_is_degraded_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    well = msgspec.structs.replace(_degraded(), state="ready", error=None)
    fleet = FleetModel(FleetClient(["n1", "n2"]), "m", {"n1": well, "n2": _degraded()}, [])
    assert fleet.state == "degraded on n2; ready on n1"
    print_fleet_models([fleet])
    text = capsys.readouterr().out
    assert "degraded on n2; ready on n1" in text
    assert f"m is degraded on n2: {_LOOPS}" in text


@pytest.mark.parametrize("status_code", [200, 404], ids=["native", "NVIDIA's"])
def test_a_typed_function_is_listed_with_its_route_if_the_frontend_serves_it(
    capsys: pytest.CaptureFixture[str], status_code: int
) -> None:
    probes: list[str] = []

    class Frontend(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            probes.append(self.path)
            self.send_response(status_code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Frontend) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        models = [
            messages.ModelInfo(name, 1, "ready", [], f"{url}/v2/models/{name}", route=route)
            for name, route in (("plain", ""), ("typed", "/predict"), ("other", "/other"))
        ]
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            print_models(models)
        finally:
            server.shutdown()
            serving.join()
    listed = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    routes = (
        ["/predict", "/other"] if status_code == 200 else ["/v2/models/typed", "/v2/models/other"]
    )
    assert listed[-3:] == [f"{url}/v2/models/plain", *(url + one for one in routes)]
    assert probes == ["/openapi.json"]
