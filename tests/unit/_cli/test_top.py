"""`pytriton-daemon top`: the table on a screen of 80 columns, and its keys."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.text import Text
from support.models.figures import model, snapshot, work
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static
from textual.widgets._footer import FooterKey

from pytriton._cli.errors import CliError
from pytriton._cli.top import command
from pytriton._cli.top.cells import COLUMNS, columns_for
from pytriton._cli.top.screen import ConfirmDialog, TopApp
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.messages.client import Finding
from pytriton._protocol.rates import Row, rows

HOSTILE = "[bold]<script>\x1b[31m"
#: The escaped form, without control sequences.
SHOWN = "[bold]<script>\\x1b[31m"


class FakeFeed:
    """Metrics that the test chooses; records the requests to the daemon."""

    def __init__(self, *snapshots: messages.MetricsSnapshot) -> None:
        self.snapshots = list(snapshots)
        self.before: messages.MetricsSnapshot | None = None
        self.done: list[messages.AnyMessage] = []
        self.failure: CliError | None = None

    def take(self) -> tuple[messages.MetricsSnapshot, list[Row]]:
        if self.failure is not None:
            raise self.failure
        now = self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]
        before, self.before = self.before, now
        return now, rows(before, now)

    def log(self, model: str) -> list[str]:
        return [json.dumps({"event": f"{model} says {HOSTILE}", "level": "info", "timestamp": "t"})]

    def requests(self, model: str) -> messages.Requests:
        slow = messages.RequestEntry(1.0, HOSTILE, model, 1, 0, "ok", None, 48_200_000, 1, 3, 4, 4)
        failed = msgspec.structs.replace(
            slow, id="order-18", status="callable", queue_ns=1_000_000, error="KeyError"
        )
        return messages.Requests(model, False, "", slowest=[slow], failed=[failed])

    def explain(self, model: str) -> messages.Explanation:
        finding = Finding("degraded", "crash_loop", f"it loops: {HOSTILE}", "Mend it.")
        return messages.Explanation(model, f"{model} is degraded", [finding], [])

    def act(self, message: messages.AnyMessage) -> None:
        if self.failure is not None:
            raise self.failure
        self.done.append(message)


TWO = snapshot(1010, model("digits", work(50)), model(HOSTILE, work(100), last_exit="signal 11"))


def on_screen(
    feed: FakeFeed,
    play: Callable[[TopApp, Pilot[None]], Awaitable[None]],
    width: int = 80,
    footer: bool = False,
) -> None:
    """Run `play` against the table, starting with its first metrics.

    The footer is left out: it creates a widget for each key again and again, which takes a third of the time.
    """

    async def run() -> None:
        app = TopApp(feed, 3600.0)  # type: ignore[arg-type]
        async with app.run_test(size=(width, 24)) as pilot:
            await settled(app, pilot)
            await play(app, pilot)

    with pytest.MonkeyPatch.context() as patched:
        if not footer:
            patched.setattr("pytriton._cli.top.screen.Footer", Static)
        asyncio.run(run())


async def settled(app: TopApp, pilot: Pilot[None]) -> None:
    """Wait until the results of all background requests are shown."""
    await app.workers.wait_for_complete()
    await pilot.pause()


def table(app: TopApp) -> list[list[str]]:
    found: DataTable[Text] = app.query_one(DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def said(app: TopApp, name: str) -> str:
    shown = app.query_one(f"#{name}", Static)
    # textual 1 renders a frame around it, and newer versions have no `renderable`.
    return str(shown.renderable if hasattr(shown, "renderable") else shown.render())


def test_models_and_instances_are_shown_within_80_columns() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        shown = table(app)
        assert [row[0] for row in shown] == [SHOWN, "  └ 0", "digits", "  └ 0"]
        assert all(sum(Text(cell).cell_len + 2 for cell in row) <= 80 for row in shown)
        assert "ready, pid 1" in said(app, "head")
        assert "2 models" in said(app, "head")

    on_screen(FakeFeed(TWO), play)


def test_a_small_screen_shows_every_models_row_uncut() -> None:
    """Three warnings and twelve models with long names on 80x24: each model has its row, with its p99."""
    names = [f"recommendation-ranker-of-region-{number:02}" for number in range(12)]
    now = snapshot(1010, *(model(name, work(50_000, ms=250, failed=999)) for name in names))
    problems = [f"model {name}: instance 0 is in a crash loop: {'x' * 200}" for name in names[:3]]
    daemon = msgspec.structs.replace(now.daemon, problems=problems)

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        shown = table(app)
        assert len(shown) == 12  # instances are omitted, because they would not fit
        assert all(row[0].startswith("recommendatio") and row[0].endswith("…") for row in shown)
        assert all(sum(Text(cell).cell_len + 2 for cell in row) <= 80 for row in shown)
        titles = [str(one.label) for one in app.query_one(DataTable).ordered_columns]
        assert shown[0][titles.index("p99 ms")] == "250"
        assert shown[0][titles.index("fail/s")] == "99.9"
        _, _, problem = said(app, "head").splitlines()
        assert problem.startswith("model recommendation-ranker-of-region-00: instance 0 is ")
        assert problem.endswith("… (and 2 more: status)")
        assert len(problem) <= 78
        await pilot.press("i")
        assert len(table(app)) == 24

    on_screen(FakeFeed(msgspec.structs.replace(now, daemon=daemon)), play)


def test_the_diagnosis_of_the_selected_model_is_shown_below() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "e")
        await settled(app, pilot)
        pane = app.query_one("#log", RichLog)
        lines = [strip.text.rstrip() for strip in pane.lines]
        assert lines == ["digits is degraded", f"degraded: it loops: {SHOWN}", "  Fix: Mend it."]

    on_screen(FakeFeed(TWO), play)


def test_a_slow_daemon_gets_one_request_at_a_time() -> None:
    """Two concurrent snapshots would each be taken for the other's predecessor."""
    feed, may_answer, asked = FakeFeed(TWO), threading.Event(), [0]
    quick = feed.take

    def slow() -> tuple[messages.MetricsSnapshot, list[Row]]:
        asked[0] += 1
        assert may_answer.wait(60)
        return quick()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        feed.take = slow  # type: ignore[method-assign]
        for _ in range(3):
            app._ask()
        may_answer.set()
        await settled(app, pilot)
        assert asked == [1]
        app._ask()
        await settled(app, pilot)
        assert asked == [2]

    on_screen(feed, play)


def test_a_wide_screen_shows_all_columns() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert len(table(app)[0]) == len(COLUMNS)
        assert table(app)[0][-1] == "signal 11"

    on_screen(FakeFeed(TWO), play, width=200)


def test_the_keys_are_shown_below() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        shown = [(key.key_display, key.description) for key in app.query(FooterKey)]
        assert shown[0] == ("q", "quit")
        assert {("l", "log"), ("+-", "scale"), ("␣", "pause")} <= {*shown}
        assert "ctrl+c" not in {key.key for key in app.query(FooterKey)}
        await pilot.press("s")
        assert "sorted by requests" in said(app, "head")

    on_screen(FakeFeed(TWO), play, footer=True)


def test_a_suspended_model_has_no_instances() -> None:
    sleeper = msgspec.structs.replace(
        model("m", work(1)), state="suspended", desired=0, instances=[]
    )
    (row,) = rows(None, snapshot(1000, sleeper))
    cells = {one.title: str(one.cell(row)) for one in COLUMNS}
    assert (cells["state"], cells["inst"]) == ("suspended", "0")


def test_keys_sort_filter_and_hide_instances() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("i")
        assert [row[0] for row in table(app)] == [SHOWN, "digits"]
        await pilot.press("s")
        assert "sorted by requests" in said(app, "head")
        assert [row[0] for row in table(app)] == [SHOWN, "digits"]
        await pilot.press("slash", *"dig", "enter")
        assert [row[0] for row in table(app)] == ["digits"]

    on_screen(FakeFeed(TWO), play)


@pytest.mark.parametrize("keys", [["q"], ["ctrl+c"], ["slash", "ctrl+c"]])
def test_keys_quit(keys: list[str]) -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        assert not app.is_running

    on_screen(FakeFeed(TWO), play)


def test_the_log_is_shown_beside_the_table_as_plain_text() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await settled(app, pilot)
        log = app.query_one("#log", RichLog)
        assert log.has_class("shown")
        text = "".join(strip.text for strip in log.lines)
        assert "<script>" in text
        assert "[bold]" in text
        assert "\x1b" not in text
        await pilot.press("l")
        assert not log.has_class("shown")

    on_screen(FakeFeed(TWO), play)


def test_the_log_replaces_the_slowest_requests() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("r")
        await settled(app, pilot)
        pane = app.query_one("#log", RichLog)
        lines = [strip.text.rstrip() for strip in pane.lines]
        assert lines[0] == "slowest of the last hour (1)"
        assert lines[2].split()[1:6] == ["0", "ok", "48.2", "-", "3"]
        assert "<script>" in lines[2]
        assert lines[3] == "last failed (1)"
        assert lines[5].split()[1:] == [
            "0",
            "callable",
            "48.2",
            "1.00",
            "3",
            "order-18",
            "KeyError",
        ]
        await pilot.press("l")
        await settled(app, pilot)
        assert pane.has_class("shown")
        assert "says" in "".join(strip.text for strip in pane.lines)
        await pilot.press("r", "r")
        await settled(app, pilot)
        assert not pane.has_class("shown")

    on_screen(FakeFeed(TWO), play)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("plus", messages.Scale("digits", 2)),
        ("b", messages.Rollback("digits")),
        ("u", messages.Unregister("digits")),
    ],
)
def test_changes_ask_for_confirmation(key: str, message: messages.AnyMessage) -> None:
    feed = FakeFeed(snapshot(1010, model("digits", work(50))))

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(key, "n")
        await settled(app, pilot)
        assert feed.done == []
        await pilot.press(key)
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("y")
        await settled(app, pilot)
        assert feed.done == [message]
        assert "done" in said(app, "said")

    on_screen(feed, play)


def test_the_last_instance_cannot_be_removed() -> None:
    feed = FakeFeed(snapshot(1010, model("digits", work(50))))

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("minus")
        assert not isinstance(app.screen, ConfirmDialog)
        assert "cannot have 0 instances" in said(app, "said")

    on_screen(feed, play)


def test_a_silent_daemon_is_reported_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FakeFeed(TWO)

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        feed.failure = CliError(ExitCode.NO_DAEMON, "no daemon is running")
        app._ask()
        await settled(app, pilot)
        assert re.match(
            r"no answer since [0-9:]{8}:  no daemon is running\nlast known state: ready",
            said(app, "head"),
        )
        since = said(app, "head")
        monkeypatch.setattr("pytriton._cli.top.screen.time.strftime", lambda _: "later")
        app._ask()
        await settled(app, pilot)
        assert said(app, "head") == since
        assert len(table(app)) == 4
        feed.failure = None
        app._ask()
        await settled(app, pilot)
        assert said(app, "head").startswith("ready, pid 1")

    on_screen(feed, play)


@pytest.mark.parametrize(
    ("state", "key", "asks"),
    [
        ("suspended", "plus", "from 0 to 1 instances"),
        ("ready", "plus", ""),
        ("suspended", "minus", ""),
    ],
)
def test_scaling_of_models_without_instances(state: str, key: str, asks: str) -> None:
    """A suspended model can be scaled; a model that tritonserver runs itself has no workers."""
    bare = msgspec.structs.replace(model("m", work(1)), state=state, desired=0, instances=[])

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        assert isinstance(app.screen, ConfirmDialog) == bool(asks)
        if asks:
            assert asks in str(app.screen.query_one(Static).render())
        else:
            wrong = (
                "cannot have -1 instances" if state == "suspended" else "no workers, so it cannot"
            )
            assert wrong in said(app, "said")

    on_screen(FakeFeed(snapshot(1010, bare)), play)


def test_with_two_hundred_models_the_cursor_stays_on_its_model() -> None:
    many = snapshot(1010, *(model(f"m{number:03}", work(number + 1)) for number in range(200)))

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*["down"] * 5)
        await pilot.press("s")  # by requests: the busiest first
        assert table(app)[0][0] == "m199"
        chosen = app._chosen()
        assert chosen is not None
        assert chosen.model == "m005"

    on_screen(FakeFeed(many), play)


def test_columns_are_dropped_on_narrow_screens() -> None:
    found = rows(None, TWO)
    widths = [len(columns_for(found, width)) for width in (300, 120, 80, 10)]
    assert widths == sorted(widths, reverse=True)
    titles = [one.title for one in columns_for(found, 10)]
    assert titles == [one.title for one in COLUMNS if not one.leaves]


def test_an_unknown_model_name_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "Feed", lambda rundir: FakeFeed(TWO))
    wanted: dict[str, Any] = {"interval_s": 0.0, "order": "name", "once": True, "as_json": False}
    with pytest.raises(CliError, match=r"no model has 'nope' in its name; .*: .*digits") as caught:
        command.run(tmp_path, "nope", **wanted)
    assert caught.value.code is ExitCode.REGISTRATION_FAILED
    command.run(tmp_path, "dig", **wanted)
