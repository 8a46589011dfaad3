"""The dashboard in a real browser, with many models and with one whose name is code."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.browser import CHROMIUM, FLAGS, Browser, browser
from support.models.figures import model, snapshot, work
from support.real_daemon import eventually

from pytriton._host.ports import listening
from pytriton._protocol.messages.client import (
    Event,
    Explanation,
    Finding,
    InstanceInfo,
    ModelInfo,
    RequestEntry,
    Requests,
    ServerInfo,
    Status,
)
from pytriton._protocol.messages.metrics import MetricsSnapshot
from pytriton.dispatcher.telemetry.dashboard.routes import Page, Sources
from pytriton.dispatcher.telemetry.http.server_thread import ServerThread

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
]

HOSTILE = "<script>document.title='ran'</script>"
NAMES = [*(f"model-{number}" for number in range(200)), HOSTILE]


_snapshots = itertools.count()


async def _figures() -> MetricsSnapshot:
    """Return more work with each snapshot: 10 requests a second."""
    number = next(_snapshots)
    models = (
        model(name, work(50 + 50 * number, failed=number), last_exit=HOSTILE) for name in NAMES
    )
    now = snapshot(1010 + 5 * number, *models)
    problems = ["the disk is full", f"model model-7: instance 0 is in a crash loop: {HOSTILE}"]
    return msgspec.structs.replace(
        now, daemon=msgspec.structs.replace(now.daemon, problems=problems)
    )


async def _status() -> Status:
    models = [
        ModelInfo(name, 1, "ready", [InstanceInfo(0, "ready", 1, last_exit=HOSTILE)])
        for name in NAMES
    ]
    return Status("1.0", 1, "python", "run", "ready", 1000.0, ServerInfo("ready", 2), models)


async def _requests(name: str) -> Requests:
    slow = RequestEntry(1.0, HOSTILE, name, 1, 0, "ok", 1_000_000, 48_200_000, 1, 3, 4, None)
    return Requests(name, False, "", slowest=[slow])


async def _explain(name: str) -> Explanation:
    finding = Finding("degraded", "crash_loop", f"it loops: {HOSTILE}", "Mend it.")
    return Explanation(name, f"{name} is degraded: it loops", [finding], await _events(False))


async def _events(asked: bool) -> list[Event]:
    return [Event(1, 5.0, "registered", "model-7", who="user ann, process 7 (python a.py)")]


@contextmanager
def _dashboard(is_owner: Callable[[str], bool]) -> Iterator[str]:
    """Serve the dashboard of a daemon with all these models; yield its URL."""
    sources = Sources(
        _figures,
        _status,
        lambda name, lines: [HOSTILE],
        _requests,
        _explain,
        _events,
        is_owner,
        dict,
    )
    listener = listening("127.0.0.1", 0, "page", backlog=8)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/page/"
    server = ServerThread(Page(sources).routes(), [listener])
    yield url
    server.stop()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a dashboard that shows everything without an access token."""
    with _dashboard(lambda _: True) as url:
        yield url


def _shown(url: str, folder: Path) -> tuple[str, str]:
    """Return the page as rendered after some seconds, and the browser's complaints."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def test_two_hundred_models_are_shown_and_names_are_escaped(url: str, tmp_path: Path) -> None:
    page, complaints = _shown(f"{url}#{HOSTILE}", tmp_path)
    rows = re.search(r'<tbody id="rows">(.*?)</tbody>', page, re.DOTALL)
    assert rows is not None
    assert rows[1].count("<tr") == len(NAMES)
    for name in ("model-0", "model-199"):
        assert f">{name}</button>" in rows[1]
    assert f'id="model-title" tabindex="-1">{_escaped(HOSTILE)}<' in page
    slowest = re.search(r'<div id="slowest".*?>(.*?)</div>', page, re.DOTALL)
    assert slowest is not None
    assert [
        f"<td{one}" in slowest[1]
        for one in (
            ' data-title="call ms">48.2<',
            ' data-title="wait ms">1.00<',
            f' class="last" data-title="id">{_escaped(HOSTILE)}<',
        )
    ] == [True] * 3
    assert page.count("<script") == 1
    assert "<title>pytriton-daemon</title>" in page
    assert "Content Security Policy" not in complaints


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def _focused(window: Browser) -> str:
    """Return the focused element's kind and text."""
    one = "document.activeElement"
    return str(window.run(f"{one}.tagName + ' ' + {one}.textContent"))


def _open(window: Browser, url: str) -> None:
    """Open the page again, and wait for its models."""
    window.open("about:blank")
    window.open(url)
    shown = "document.querySelectorAll('#rows button').length"
    eventually(lambda: window.run(shown) == len(NAMES), "the models are shown")


def _on_model(window: Browser, url: str, name: str) -> None:
    """Open the page again, and move to a model's button with the keyboard."""
    _open(window, url)
    window.run(
        f"[...document.querySelectorAll('#rows button')].find(b => b.textContent === {name!r}).focus()"
    )


def _on_open_model(window: Browser, url: str, name: str) -> None:
    """Open the page again, and show a model."""
    _on_model(window, url, name)
    window.press("Enter")
    eventually(lambda: _shown_model(window) == name, "it is shown")


def _shown_model(window: Browser) -> str | None:
    hidden = window.run("document.getElementById('model').hidden")
    return None if hidden else str(window.run("document.getElementById('model-title').textContent"))


def test_models_can_be_opened_and_closed_by_keyboard(window: Browser, url: str) -> None:
    _on_model(window, url, "model-7")
    window.press("Enter")
    eventually(lambda: _focused(window) == "H2 model-7", "the focus is on the model's title")
    assert _shown_model(window) == "model-7"
    window.press("Tab")
    assert _focused(window) == "BUTTON Close"
    window.press("Enter")
    assert _shown_model(window) is None
    assert _focused(window) == "BUTTON model-7"


def test_sorting_by_the_keyboard_keeps_the_focus(window: Browser, url: str) -> None:
    _on_model(window, url, "model-0")
    heads = "document.querySelectorAll('#columns th')[3]"
    window.run(f"{heads}.firstChild.focus()")
    for order in ("descending", "ascending"):
        window.press("Enter")
        assert _focused(window) == "BUTTON requests/s"
        assert window.run(f"{heads}.getAttribute('aria-sort')") == order


def test_the_url_selects_the_model_and_back_works(window: Browser, url: str) -> None:
    _on_open_model(window, url, "model-1")
    window.run("location.hash = 'model-2'")
    eventually(lambda: _shown_model(window) == "model-2", "the other one is shown")
    window.run("history.back()")
    eventually(lambda: _shown_model(window) == "model-1", "the first one is shown again")
    window.run("history.back()")
    eventually(lambda: _shown_model(window) is None, "none is shown")


@pytest.mark.parametrize("address", ["%", "%E0%A4%A", "nobody"])
def test_an_unknown_url_shows_the_overview(window: Browser, url: str, address: str) -> None:
    _open(window, f"{url}#{address}")


def test_a_screen_reader_gets_names_and_no_noise(window: Browser, url: str) -> None:
    """Frequently changing values, such as the uptime, are not announced."""
    _on_open_model(window, url, "model-3")
    roles = window.roles()
    wanted = {"button", "textbox", "searchbox", "checkbox", "link", "region", "image", "heading"}
    assert wanted - {role for role, _ in roles} == set()
    assert [role for role, name in roles if role in wanted and not name] == []
    live = "[...document.querySelectorAll('[aria-live], [role=status]')].map(one => one.id)"
    assert window.run(live) == ["trouble", "told", "answer"]
    assert window.run("document.getElementById('trouble').textContent") == ""
    assert "tritonserver ready" in window.run("document.getElementById('headline').textContent")


def test_numbers_beyond_javascripts_range_are_shown_as_sent(window: Browser, url: str) -> None:
    """A fake of the page's own server answers; no model is involved."""
    _on_open_model(window, url, "model-4")
    said = '{"data":[9007199254740993,0.10]}'
    window.run(f"fetch = async () => new Response({said!r})")
    window.run("document.getElementById('ask').requestSubmit()")
    text = "document.getElementById('answer').textContent"
    eventually(lambda: window.run(text) == said, lambda: str(window.run(text)))


#: Answers of these addresses wait: `held` has pairs of an address and what gives its answer. That is done
#: once the page has read the answer and handled it completely.
_HOLD = """
window.held = [];
window.holding = WHICH;
window.real = fetch;
window.answering = (give) => (status, text) => new Promise((done) => {
  const answer = new Response(text, {status});
  const reading = answer.text();
  answer.text = () => { reading.then(() => setTimeout(done)); return reading; };
  give(answer);
});
fetch = (path, options) => holding.test(path)
  ? new Promise((give) => held.push([path, answering(give)])) : real(path, options);
"""


def _hold(window: Browser, which: str) -> None:
    window.run(_HOLD.replace("WHICH", f"/{which}/"))


def _held(window: Browser) -> list[str]:
    found: list[str] = window.run("held.map((one) => one[0])")
    return found


def _give(window: Browser, number: int, status: int, text: str) -> None:
    """Send an answer, and return once the page has handled it."""
    window.run(f"held[{number}][1]({status}, {text!r})")


def _form(window: Browser) -> tuple[str, str, list[bool]]:
    """Return the form's request and answer, and whether its controls are disabled."""
    request = window.run("document.getElementById('request').value")
    answer = window.run("document.getElementById('answer').textContent")
    disabled = window.run("[...document.getElementById('ask').elements].map(one => one.disabled)")
    return request, answer, disabled


def _filled(window: Browser) -> bool:
    request, _, disabled = _form(window)
    return "inputs" in request and disabled == [False, False]


def test_a_late_answer_is_not_shown_for_another_model(window: Browser, url: str) -> None:
    _on_open_model(window, url, "model-1")
    eventually(lambda: _filled(window), "the form is there")
    _hold(window, "infer")
    window.run("document.getElementById('ask').requestSubmit()")
    assert _form(window)[1] == "…"
    window.run("location.hash = 'model-2'")
    eventually(lambda: _shown_model(window) == "model-2" and _filled(window), "the other one")
    _give(window, 0, 200, "of model-1")
    assert _form(window)[1] == ""
    window.run("document.getElementById('ask').requestSubmit()")
    window.run("document.getElementById('ask').requestSubmit()")
    assert _held(window) == [f"infer?name=model-{number}" for number in (1, 2, 2)]
    _give(window, 2, 500, '{"error": "the second"}')
    _give(window, 1, 200, "the first")
    assert _form(window)[1] == "the second"


def test_input_typed_for_one_model_is_not_sent_to_another(window: Browser, url: str) -> None:
    """While the other model's view is loading, or failed to load, nothing can be sent."""
    _on_open_model(window, url, "model-1")
    eventually(lambda: _filled(window), "the form is there")
    window.run("document.getElementById('request').value = 'for model-1'")
    _hold(window, "model-2|infer")
    window.run("location.hash = 'model-2'")
    eventually(lambda: _held(window), "it is asked for")
    for said in ("", "not now"):
        if said:
            _give(window, 0, 500, '{"error": "not now"}')
        assert _form(window) == ("", "", [True, True])
        window.run("document.getElementById('ask').requestSubmit()")
        assert set(_held(window)) == {"model.json?name=model-2"}
        assert _shown_model(window) == "model-2"
        assert window.run("document.getElementById('histograms').children.length") == 0
        assert window.run("document.getElementById('model-state').textContent") == said


def test_a_form_that_failed_to_load_appears_later_and_keeps_its_input(
    window: Browser, url: str
) -> None:
    _on_model(window, url, "model-1")
    _hold(window, "model.json")
    window.press("Enter")
    eventually(lambda: _held(window), "it is asked for")
    _give(window, 0, 500, '{"error": "not now"}')
    assert _form(window) == ("", "", [True, True])
    window.run("holding = /infer/; held.slice(1).forEach((one) => one[1](500, '{}'))")
    refresh = "document.getElementById('token').dispatchEvent(new Event('change'))"
    eventually(lambda: (window.run(refresh), _filled(window))[1], "the form is there")
    window.run("document.getElementById('request').value = 'mine'")
    before = window.run("performance.getEntriesByType('resource').length")
    later = f"performance.getEntriesByType('resource').slice({before})"
    asked = f"{later}.filter((one) => one.name.includes('model.json')).length"
    eventually(lambda: (window.run(refresh), window.run(asked) > 1)[1], "it was shown again")
    assert _form(window) == ("mine", "", [False, False])


def test_a_problem_links_to_its_model(window: Browser, url: str) -> None:
    _on_model(window, url, "model-1")
    problems = window.run(
        "[...document.querySelectorAll('#problems li')].map((li) => li.innerHTML)"
    )
    assert problems[0] == "the disk is full"
    window.run("document.querySelector('#problems button').focus()")
    window.press("Enter")
    eventually(lambda: _focused(window) == "H2 model-7", "the model is shown")
    assert _shown_model(window) == "model-7"


def test_an_entered_token_applies_immediately_and_a_wrong_one_is_reported(
    window: Browser,
) -> None:
    """Also while the page is paused. Nothing is sent before the token is complete."""
    hidden = "shown with the access token"
    sent = []

    def is_owner(authorization: str) -> bool:
        sent.append(authorization)
        return authorization == "Bearer right"

    def shown() -> tuple[str, str, str]:
        first = "document.querySelector({!r}).textContent"
        places = ("#trouble", "#problems li", "#rows .last")
        return tuple(window.run(first.format(place)) for place in places)

    with _dashboard(is_owner) as url:
        _on_model(window, url, "model-7")
        assert shown() == ("", f"the daemon: {hidden}", hidden)
        window.run("document.getElementById('paused').click()")
        window.run("document.getElementById('token').focus()")
        wrong = "The access token is wrong. Run pytriton-daemon access-token to print it."
        window.press(*"wrong", "Enter")
        eventually(lambda: shown() == (wrong, f"the daemon: {hidden}", hidden), "it is refused")
        window.press(*["Backspace"] * 5, *"right", "Enter")
        eventually(lambda: shown() == ("", "the disk is full", HOSTILE), lambda: str(shown()))
        assert set(sent) == {"", "Bearer wrong", "Bearer right"}
        window.open("about:blank")


def test_charts_have_axes_and_labels(window: Browser, url: str) -> None:
    _on_open_model(window, url, "model-7")
    drawn = "document.querySelectorAll('#model-charts path').length"
    eventually(lambda: window.run(drawn) == 6, "five charts, one of them with two series")
    svg = "[...document.querySelectorAll('#model-charts svg')]"
    assert window.run(f"{svg}.every((one) => one.querySelectorAll('line').length >= 2)")
    titles = [
        "Requests per second", "Failures per second", "Call duration, ms", "Queued requests",
        "Worker memory",
    ]  # fmt: skip
    said = window.run(f"{svg}.map((one) => one.getAttribute('aria-label'))")
    assert [one.partition(" from ")[0] for one in said] == titles
    assert "now 10, at most 10" in said[0]
    steps = window.run(f"[...{svg}[0].querySelectorAll('text')].map((one) => one.textContent)")
    assert steps[:3] == ["0", "5", "10"]
    assert all(re.fullmatch(r"\d\d:\d\d", one) for one in steps[-3:])


def test_the_diagnosis_and_the_actors_are_shown(window: Browser, url: str) -> None:
    _on_open_model(window, url, "model-7")
    text = "document.getElementById({!r}).innerText"
    eventually(lambda: "it loops" in window.run(text.format("findings")), "it is shown")
    findings = window.run(text.format("findings"))
    assert findings.split("\n\n")[:2] == [
        "model-7 is degraded: it loops",
        f"degraded: it loops: {HOSTILE}",
    ]
    for place in ("model-events", "event-list"):
        reported = window.run(text.format(place))
        assert "model registered" in reported
        assert "user ann, process 7 (python a.py)" in reported


def test_on_a_phone_each_model_is_a_card_with_all_values(window: Browser, url: str) -> None:
    window.resize(390, 844)
    try:
        _on_model(window, url, "model-7")
        assert window.run("document.documentElement.scrollWidth") <= 390
        cells = "[...document.querySelector('#rows tr').children].filter((td) => td.textContent)"
        inside = "(td) => td.getBoundingClientRect().width > 0 && td.getBoundingClientRect().right <= 390"
        assert window.run(f"{cells}.every({inside})")
        shown = window.run(f"{cells}.map((td) => td.dataset.title)")
        assert {"state", "requests/s", "p99 ms", "memory", "last exit"} <= set(shown)
    finally:
        window.resize(1200, 900)


def test_the_browser_logged_no_errors(window: Browser, url: str) -> None:
    """During all tests above: no policy was violated, and no script failed."""
    _on_open_model(window, url, HOSTILE)
    assert window.run("document.title") == "pytriton-daemon"
    # Advice for authors of pages, and an unknown model.
    harmless = ("verbose: ", "name=nobody")
    assert [one for one in window.complaints if not any(word in one for word in harmless)] == []


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")
