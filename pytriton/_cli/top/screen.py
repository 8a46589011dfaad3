"""The live table in a terminal (with Textual)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from pytriton._cli.errors import CliError
from pytriton._cli.logs import pretty
from pytriton._cli.output import visible
from pytriton._cli.top.cells import columns_for, explanation_lines, request_lines, room_for_names
from pytriton._cli.top.feed import Feed
from pytriton._protocol import messages
from pytriton._protocol.rates import SORTING, Row, headline, sort_rows, total

_ORDERS = tuple(SORTING)
#: Number of lines on the screen that are not table rows: the head with a problem, the titles, the message, the keys.
_BESIDE_TABLE = 8


class ConfirmDialog(ModalScreen[bool]):
    """Dialog that asks to confirm a change: y confirms, other keys cancel."""

    CSS = """
    ConfirmDialog { align: center middle; }
    ConfirmDialog > Static { width: auto; max-width: 70; padding: 1 2; border: round $warning; background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,enter,q", "answer(False)", "no"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(Text(f"{self._text}\n\ny: yes   n: no"))

    def action_answer(self, yes: bool) -> None:
        """Close the dialog with the answer."""
        self.dismiss(yes)


class TopApp(App[None]):
    """The table and its keys. Requests to the daemon run in threads, so that a slow answer does not block the screen."""

    CSS = """
    #head { height: auto; padding: 0 1; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    #log { display: none; height: 40%; border-top: solid $primary; }
    #log.shown { display: block; }
    #said { height: auto; padding: 0 1; color: $warning; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # wherever the focus is
        Binding("s", "sort", "sort"),
        # These words fit into the footer at 80 columns.
        Binding("slash", "filter", "find"),
        Binding("i", "instances", "inst"),
        Binding("e", "explain", "why"),
        Binding("l,enter", "log", "log", key_display="l"),
        Binding("r", "requests", "reqs"),
        Binding("plus,equals_sign", "scale(1)", "scale", key_display="+-"),
        Binding("minus", "scale(-1)", show=False),
        Binding("b", "rollback", "back"),
        Binding("u", "unregister", "del"),
        Binding("space", "pause", "pause", key_display="␣"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, feed: Feed, interval_s: float, containing: str = "", order: str = _ORDERS[0]
    ) -> None:
        super().__init__()
        self._feed = feed
        self._interval_s = interval_s
        self._containing = containing
        self._order = order
        #: Whether to show instances; None: only if all rows fit on the screen.
        self._with_instances: bool | None = None
        self._paused = False
        #: True while a request is in progress: only one is sent at a time, even if answers take longer than the interval.
        self._asking = False
        #: Returns the content of the lower pane for a model.
        self._pane: Callable[[str], list[Text]] = self._log_lines
        self._figures: messages.MetricsSnapshot | None = None
        #: When the daemon stopped answering, and why; "" if it answers.
        self._silent = ""
        self._rows: list[Row] = []
        self._shown: list[Row] = []

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(id="head")
        yield Input(self._containing, placeholder="part of a model's name", id="filter")
        with Vertical():
            yield DataTable(cursor_type="row", zebra_stripes=True)
            yield RichLog(id="log", wrap=True, max_lines=400)
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Start polling."""
        self.query_one(DataTable).focus()
        self.set_interval(self._interval_s, self._ask)
        self._ask()

    def on_resize(self) -> None:
        """Show the columns that fit into the new width."""
        self._show()

    # ── metrics ──────────────────────────────────────────────────────────────────────────────────

    def _ask(self) -> None:
        if not self._paused and not self._asking:
            self._asking = True
            self._take()

    @work(thread=True, group="metrics")
    def _take(self) -> None:
        try:
            metrics, rows = self._feed.take()
        except CliError as error:
            self.call_from_thread(self._lost, str(error))
        else:
            self.call_from_thread(self._taken, metrics, rows)
        finally:
            self._asking = False

    def _lost(self, why: str) -> None:
        """Mark the screen as outdated. Polling continues, since the daemon may answer again."""
        since = self._silent.partition(":  ")[0] or time.strftime("no answer since %H:%M:%S")
        self._silent = f"{since}:  {why}"
        self._show()

    def _taken(self, metrics: messages.MetricsSnapshot, rows: list[Row]) -> None:
        self._figures, self._rows = metrics, rows
        self._silent = ""
        self._show()
        chosen = self._chosen()
        if chosen is not None and self.query_one("#log").has_class("shown"):
            self._read(chosen.model)

    def _show(self) -> None:
        if self._figures is None:
            return
        metrics = self._figures
        requests_s, failures_s = total(self._rows)
        facts = [f"{requests_s:,.1f} requests/s"]
        facts += [f"{failures_s:,.1f} failures/s"] if failures_s else []
        facts += [f"{len(metrics.models)} models", f"sorted by {self._order}"]
        facts += [f"only *{self._containing}*"] if self._containing else []
        facts += ["PAUSED"] if self._paused else []
        head = Text(f"{headline(metrics.daemon, metrics.at)}\n{', '.join(facts)}")
        if self._silent:
            head = Text(f"{self._silent}\nlast known state: ", style="red").append(head)
        head.append_text(self._problems(metrics.daemon.problems))
        self.query_one("#head", Static).update(head)
        found = sort_rows(self._rows, self._order, self._containing)
        shown = self._shows_instances(found)
        self._fill([one for one in found if shown or not one.instance])

    def _problems(self, problems: list[str]) -> Text:
        """Return one line for each problem, but not so many that they take up most of the screen."""
        width, room = self.size.width - 2, max(1, (self.size.height - 20) // 4)
        lines = Text()
        for number, problem in enumerate(problems[:room], 1):
            more = len(problems) - room if number == room else 0
            end = f" (and {more} more: status)" if more > 0 else ""
            line = Text(visible(problem), style="red")
            line.truncate(width - len(end), overflow="ellipsis")
            lines.append("\n").append_text(line).append(end, style="red")
        return lines

    def _shows_instances(self, rows: list[Row]) -> bool:
        if self._with_instances is None:
            return len(rows) <= self.size.height - _BESIDE_TABLE
        return self._with_instances

    def _fill(self, rows: list[Row]) -> None:
        table: DataTable[Text] = self.query_one(DataTable)
        chosen, scrolled = self._chosen(), table.scroll_y
        table.clear(columns=True)
        self._shown = rows
        columns = columns_for(rows, self.size.width - 2)
        room = room_for_names(columns, rows, self.size.width - 2)
        for one in columns:
            table.add_column(Text(one.title, justify="right" if one.right else "left"))
        for row in rows:
            cells = [one.cell(row) for one in columns]
            cells[0].truncate(room, overflow="ellipsis")
            for cell, one in zip(cells, columns):
                cell.justify = "right" if one.right else "left"
            table.add_row(*cells)
        keys = [(one.model, one.instance) for one in rows]
        if chosen is not None and (chosen.model, chosen.instance) in keys:
            table.move_cursor(row=keys.index((chosen.model, chosen.instance)), animate=False)
        table.scroll_to(y=scrolled, animate=False)

    def _chosen(self) -> Row | None:
        """Return the selected row."""
        row: int = self.query_one(DataTable).cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────

    def action_sort(self) -> None:
        """Switch to the next sort order."""
        self._order = _ORDERS[(_ORDERS.index(self._order) + 1) % len(_ORDERS)]
        self._show()

    def action_instances(self) -> None:
        """Show or hide instances."""
        self._with_instances = not self._shows_instances(self._rows)
        self._show()

    def action_pause(self) -> None:
        """Pause or resume polling."""
        self._paused = not self._paused
        self._show()

    def action_filter(self) -> None:
        """Open the filter field."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by name while the user types."""
        self._containing = event.value
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the filter field."""
        event.input.remove_class("shown")
        self.query_one(DataTable).focus()

    def action_log(self) -> None:
        """Show or hide the log of the selected model in the lower pane."""
        self._toggle(self._log_lines)

    def action_explain(self) -> None:
        """Show or hide the explanation of the selected model's state in the lower pane."""
        self._toggle(self._explanation_lines)

    def action_requests(self) -> None:
        """Show or hide the selected model's slowest requests and its last failures in the lower pane."""
        self._toggle(self._request_lines)

    def on_data_table_row_selected(self) -> None:
        """Show or hide the log on Enter. The table consumes this key before the key bindings see it."""
        self.action_log()

    def _toggle(self, lines: Callable[[str], list[Text]]) -> None:
        chosen, pane = self._chosen(), self.query_one("#log", RichLog)
        if chosen is None or (pane.has_class("shown") and self._pane == lines):
            pane.remove_class("shown")
            return
        self._pane = lines
        pane.clear()
        pane.add_class("shown")
        self._read(chosen.model)

    def _log_lines(self, model: str) -> list[Text]:
        return [Text.from_ansi(pretty(line, colors=True)) for line in self._feed.log(model)]

    def _explanation_lines(self, model: str) -> list[Text]:
        return explanation_lines(self._feed.explain(model))

    def _request_lines(self, model: str) -> list[Text]:
        return request_lines(self._feed.requests(model))

    @work(thread=True, exclusive=True, group="log")
    def _read(self, model: str) -> None:
        pane = self._pane
        try:
            lines = pane(model)
        except CliError as error:
            lines = [Text(str(error))]
        self.call_from_thread(self._show_pane, model, pane, lines)

    def _show_pane(self, model: str, of: Callable[[str], list[Text]], lines: list[Text]) -> None:
        if of != self._pane:
            return  # another pane was selected in between
        pane = self.query_one("#log", RichLog)
        pane.border_title = Text(model)
        pane.auto_scroll = of == self._log_lines  # the slowest request is at the top
        pane.clear()
        for line in lines:
            pane.write(line)

    def action_scale(self, more: int) -> None:
        """Add or remove an instance of the selected model, after confirmation."""
        chosen = self._chosen()
        if chosen is None:
            return
        model = chosen.model
        wanted = self._desired(model)
        if wanted is None:
            self._say(f"{model} has no workers, so it cannot be scaled")
            return
        if wanted + more < 1:
            self._say(f"{model} cannot have {wanted + more} instances")
            return
        self._confirm(
            f"Scale {model} from {wanted} to {wanted + more} instances?",
            messages.Scale(model, wanted + more),
        )

    def _desired(self, model: str) -> int | None:
        for one in self._rows:
            if one.model == model and not one.instance:
                return one.instances[1] if one.instances[1] or one.state == "suspended" else None
        return None

    def action_rollback(self) -> None:
        """Roll back the last replacement of the selected model, after confirmation."""
        chosen = self._chosen()
        if chosen is not None:
            text = f"Roll back {chosen.model} to its previous registration?"
            self._confirm(text, messages.Rollback(chosen.model))

    def action_unregister(self) -> None:
        """Unregister the selected model, after confirmation."""
        chosen = self._chosen()
        if chosen is not None:
            text = f"Unregister {chosen.model}? Its workers exit, and clients get 404."
            self._confirm(text, messages.Unregister(chosen.model))

    def _confirm(self, text: str, message: messages.AnyMessage) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._say("…")
                self._do(message)

        self.push_screen(ConfirmDialog(text), answered)

    @work(thread=True, group="actions")
    def _do(self, message: messages.AnyMessage) -> None:
        begun = time.monotonic()
        try:
            self._feed.act(message)
        except CliError as error:
            said = str(error)
        else:
            said = f"{type(message).__name__.lower()}: done in {time.monotonic() - begun:.1f} s"
        self.call_from_thread(self._say, said)

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(Text(text))
