"""Check that the generated pages of the site are complete, and that their links work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation import command_pages, python_pages, reference_pages, root_pages
from documentation.documents import anchors

import pytriton
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher.telemetry.events.kinds import KINDS
from pytriton.run_options import OPTIONS

ROOT = Path(__file__).parents[4]
PAGES = {
    **root_pages.pages(ROOT),
    **command_pages.pages(),
    **python_pages.pages(),
    **reference_pages.pages(),
}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", navigation, re.M))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert named == written | set(PAGES)


def test_commands_have_their_flags() -> None:
    text = PAGES["reference/commands.md"]
    parts = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.M))
    assert {"start", "keys add", "fleet register"} <= set(parts)
    assert "| `--lines`, `-n` LINES | Number of lines. Default: `100`. |" in parts["logs"]
    assert "`pytriton-daemon unregister MODEL`" in parts["unregister"]
    assert "[Configuration](configuration.md)" in parts["start"]
    assert "`--http-port`" not in parts["start"]


def test_options_codes_events_and_messages_are_complete() -> None:
    assert all(f"| `{name}` |" in PAGES["reference/options.md"] for name in OPTIONS)
    assert all(
        f"| `{code.value}` | {code.meaning} |" in PAGES["reference/errors.md"] for code in ExitCode
    )
    assert "| `ModelExistsError` | `RegistrationError` |" in PAGES["reference/errors.md"]
    assert all(f"| `{name}` |" in PAGES["reference/events.md"] for name in KINDS)
    sent = [name for name, one in vars(messages).items() if hasattr(one, "__struct_fields__")]
    assert [name for name in sent if f"\n### {name}\n" not in PAGES["reference/messages.md"]] == [
        "Message"
    ]


def test_the_python_pages_cover_all_exports() -> None:
    """A name is listed itself, or with its whole module or package."""
    text = "\n".join(page for path, page in PAGES.items() if path.startswith("reference/python/"))
    shown = set(re.findall(r"^::: (\S+)$", text, re.M))
    for name in sorted(set(pytriton.__all__) - {"__version__"}):
        module: str = getattr(pytriton, name).__module__
        places = {f"{module}.{name}", module, module.rpartition(".")[0]}
        assert places & shown, f"add {name} to scripts/tools/documentation/python_pages.py"


@pytest.mark.parametrize("path", PAGES)
def test_links_work(path: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[path]):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        place = (ROOT / "docs" / path).parent.joinpath(name).resolve()
        page = place.relative_to(ROOT / "docs").as_posix() if name else path
        text = PAGES.get(page) or place.read_text(encoding="utf-8")
        assert not anchor or anchor in anchors(text), target


def test_links_to_other_files_become_text(tmp_path: Path) -> None:
    for name in root_pages.PAGES:
        (tmp_path / name).write_text(
            "[a](CHANGELOG.md#x) [b](docs/c/d.md) [e](LICENSE) [f](https://g)\n"
        )
    assert set(root_pages.pages(tmp_path).values()) == {
        "[a](changelog.md#x) [b](../c/d.md) e [f](https://g)\n"
    }
