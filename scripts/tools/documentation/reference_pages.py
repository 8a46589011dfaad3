"""Generate reference pages from declarations: options of a model, errors, events, messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any, get_type_hints

import msgspec
from generators.pages import event_table

import pytriton.client.exceptions
import pytriton.exceptions
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import FINAL, ExitCode
from pytriton._protocol.lanes import lane_messages
from pytriton._protocol.messages import base, client, metrics, model_spec, proxy, worker
from pytriton.run_options import OPTIONS, RegisterOptions

_CONTROL = (client, model_spec, worker, proxy, metrics)


def pages() -> dict[str, str]:
    """Return the pages by their path in the site."""
    return {
        "reference/options.md": _options(),
        "reference/errors.md": _errors(),
        "reference/events.md": _events(),
        "reference/messages.md": _messages(),
    }


def _options() -> str:
    types = get_type_hints(RegisterOptions)
    rows = [
        (f"`{name}`", f"`{_type(types.get(name, Any))}`", option.doc)
        for name, option in OPTIONS.items()
    ]
    return "\n".join(
        [
            "# Options of a model",
            "",
            "Keyword arguments of `register`, `declare`, `bind` and similar functions. "
            "[Registering](../how-to/registering.md) has examples.",
            "",
            *_table(("option", "type", "what it does"), rows),
        ]
    )


def _errors() -> str:
    final = set(FINAL)
    codes = [
        (
            f"`{code.value}`",
            code.meaning,
            "not restart" if code in final or not code else "restart",
        )
        for code in ExitCode
    ]
    lines = [
        "# Errors and exit codes",
        "",
        "## Exit codes",
        "",
        "The same for every command, and for a daemon in the foreground.",
        "",
        *_table(("code", "meaning", "a supervisor should"), codes),
        "",
    ]
    for title, module in (
        ("Exceptions", pytriton.exceptions),
        ("Exceptions of clients", pytriton.client.exceptions),
    ):
        rows = [
            (f"`{one.__name__}`", f"`{one.__bases__[0].__name__}`", _first_sentence(one))
            for one in _classes(module, Exception)
        ]
        lines += [f"## {title}", "", f"All are in `{module.__name__}`.", ""]
        lines += [*_table(("exception", "is a", "when"), rows), ""]
    return "\n".join(lines)


def _events() -> str:
    return (
        "# Events\n\nKinds of events in the event log, in `explain`, and in webhooks. "
        "[Explain](../operations/explain.md) has more about the event log.\n\n" + event_table()
    )


def _messages() -> str:
    lines = [
        "# Control protocol",
        "",
        f"Messages of the control socket, protocol {base.PROTOCOL}. The format is private: both ends have the same "
        "version of this package, and clients compare the protocol in each hello. Senders and receivers:",
        "",
        *(line for line in _text(messages).splitlines() if line.startswith("    ")),
        "",
    ]
    for module in (*_CONTROL, lane_messages):
        name = module.__name__.rpartition(".")[2]
        lines += [f"## {name.replace('_', ' ').capitalize()}", "", _text(module), ""]
        for one in _classes(module, msgspec.Struct):
            lines += [f"### {one.__name__}", "", _text(one), ""]
            fields = msgspec.structs.fields(one)
            if fields:
                rows = [(f"`{f.name}`", f"`{_type(f.type)}`", _default(f)) for f in fields]
                lines += [*_table(("field", "type", "default"), rows), ""]
    return "\n".join(lines)


def _classes(module: ModuleType, base_class: type) -> list[type]:
    """Return the public classes that a module defines, in order of definition."""
    return [
        one
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, base_class)
        and one.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_cell(one) for one in line) + " |" for line in lines]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _text(documented: Any) -> str:
    return inspect.getdoc(documented) or ""


def _first_sentence(documented: Any) -> str:
    return _text(documented).partition("\n\n")[0]


def _type(annotation: Any) -> str:
    """Return an annotation as text, without module names."""
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not hasattr(annotation, "__args__")
        else str(annotation)
    )
    return re.sub(r"\b(?:[a-z_]+\.)+", "", text).replace("NoneType", "None")


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{field.default!r}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()!r}`"
    return ""
