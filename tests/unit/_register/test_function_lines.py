"""Source lines of pickled functions, for tracebacks in workers that lack their files."""

from __future__ import annotations

import inspect
import io
import linecache
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from pytriton._protocol import messages
from pytriton._protocol.payload import unpack
from pytriton._register.environment import WorkerModules, capture_environment
from pytriton._register.pickling import pack_callable
from pytriton.worker.callables import load_object
from pytriton.worker.fault_reports import traceback_of

TEXT = """
SECRET = "nobody's business"
\f
class Check:
    def __call__(self, x):
        raise ValueError(
            "no: %s" % x
        )

check = Check()
late = (lambda:
    lambda x: check(
        x))()
def infer(x):
    return late(x)
"""


@pytest.fixture(autouse=True)
def _own_lines() -> Iterator[None]:
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


def made_of(text: str, file: str, **names: Any) -> Callable[..., Any]:
    """Return the `infer` of a program with this text."""
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(text, file, "exec"), namespace)
    infer: Callable[..., Any] = namespace["infer"]
    return infer


def remember(file: str) -> None:
    """Make this process know the lines of a file that does not exist."""
    linecache.cache[file] = (len(TEXT), None, io.StringIO(TEXT).readlines(), file)


def payload_of(infer: Callable[..., Any]) -> bytes:
    with closing(WorkerModules(capture_environment(), own_interpreter=True)) as imports:
        return pack_callable(infer, imports, "m")


def loaded(payload: bytes) -> Any:
    """Load a callable in a process that knows no source lines yet."""
    linecache.clearcache()
    return load_object(
        payload, messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    )


def reported(infer: Any) -> list[str]:
    """Return the source lines in the traceback of a call, without Python's underlines."""
    with pytest.raises(ValueError, match="no: 3") as caught:
        infer(3)
    lines = [line.strip() for line in traceback_of(caught.value).splitlines()]
    return [line for line in lines if set(line) - set("~^")]


def expect(infer: Any, file: str) -> None:
    lines = reported(infer)
    start = lines.index(f'File "{file}", line 15, in infer')
    assert lines[start + 1] == "return late(x)"
    assert lines[start + 2 : start + 4] == [
        f'File "{file}", line 12, in <lambda>',
        "lambda x: check(",
    ]
    assert f'File "{file}", line 6, in __call__' in lines
    assert "raise ValueError(" in lines


def test_a_changed_script_is_shown_as_loaded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    payload = payload_of(made_of(TEXT, str(script)))
    script.write_text("# another program\n" * 30)
    infer = loaded(payload)
    expect(infer, str(script))
    assert linecache.getline(str(script), 2) == "# another program\n"
    assert inspect.getsource(infer) == "def infer(x):\n    return late(x)\n"


def test_a_script_that_changes_later_is_shown_as_registered(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    infer = loaded(payload_of(made_of(TEXT, str(script))))
    script.write_text("# another program\n" * 30)
    expect(infer, str(script))


def test_a_cell_of_a_notebook_is_shown() -> None:
    cell = "/tmp/ipykernel_7/1234.py"
    remember(cell)  # as IPython does
    expect(loaded(payload_of(made_of(TEXT, cell))), cell)


def test_a_member_of_an_archive_is_shown(tmp_path: Path) -> None:
    member = str(tmp_path / "app.pyz" / "__main__.py")
    text = TEXT.replace("\f", "")  # which Python itself counts as the end of a line of these
    loader = SimpleNamespace(get_source=lambda name: text)
    expect(loaded(payload_of(made_of(text, member, __loader__=loader))), member)


def test_only_lines_of_functions_are_sent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    payload = payload_of(made_of(TEXT, str(script)))
    assert b"nobody's business" not in payload
    header, _ = unpack(payload)
    assert {(one.file, one.first) for one in header.lines} == {
        (str(script), first) for first in (5, 12, 14)
    }


def test_code_without_a_file_has_no_lines() -> None:
    """Otherwise its lines would be shown for all other code compiled from strings."""
    remember("<string>")
    header, _ = unpack(payload_of(made_of(TEXT, "<string>")))
    assert header.lines == []
    header, _ = unpack(payload_of(made_of(TEXT, "/of/nobody.py")))
    assert header.lines == []


def test_too_many_lines_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    infer = made_of(TEXT, str(script))
    monkeypatch.setattr("pytriton._register.pickling.MAX_LINES_BYTES", 50)
    header, _ = unpack(payload_of(infer))
    assert [one.first for one in header.lines] == [14]


def test_code_names_its_file() -> None:
    """cloudpickle 3.1.3 writes "<dynamic-code>" instead."""

    def outer(x: int) -> list[int]:
        return [one + x for one in range(2)]

    loaded = cloudpickle.loads(unpack(payload_of(outer))[1])
    assert loaded(1) == [1, 2]
    inner = [part for part in loaded.__code__.co_consts if isinstance(part, CodeType)]
    assert {code.co_filename for code in [loaded.__code__, *inner]} == {__file__}
    assert loaded.__code__ == outer.__code__
