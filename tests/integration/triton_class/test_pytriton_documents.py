"""Every Python example of three PyTriton documents runs as written.

The documents are NVIDIA's and not in this repository. This module names what an example leaves to its reader: `model`
and torch come from tests/support/seed_stubs, and where the text is abridged (`...`), the model is called.
"""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import eventually
from support.scripts import Script
from support.seed_stubs.inference_calls import answer

ROOT = Path(__file__).parents[3]
STUBS = ROOT / "tests" / "support" / "seed_stubs"
FOLDER = Path(os.environ.get("PYTRITON_SEEDS") or ROOT.parent / "shared" / "seeds")
DOCUMENTS = {path.name[:3]: path for path in sorted(FOLDER.glob("00[012]-pytriton-*.md"))}
pytestmark = [
    pytest.mark.skipif(
        len(DOCUMENTS) != 3,
        reason=f"PyTriton's three documents (000-, 001-, 002-pytriton-*.md) are not in {FOLDER}; "
        "PYTRITON_SEEDS=FOLDER names theirs",
    ),
    #: A test may wait for the scripts of others, which run side by side.
    pytest.mark.timeout(600),
]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SHELL = re.compile(r"^(PYTRITON_\w+)=(\S+) python my_script\.py$", re.MULTILINE)
#: Scripts that run side by side.
_AT_ONCE = 3
#: In front of every example: a log that shows where the server is, and the names that only some of them use.
#: Not by PYTHONPATH: with that, a script is no fork.
_BEFORE = f"""
import logging, sys
sys.path.insert(0, {str(STUBS)!r})
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
del logging, sys  # an example has to import what it uses
from inference_calls import ask, call, compare, show_specs
from undefined import model
"""


@dataclass(frozen=True)
class Program:
    """Examples of one document that form one script.

    Attributes:
        document: its number
        blocks: numbers of its Python examples, from 1
        more: by number of an example, the code to append to it
        says: what the script prints
    """

    document: str
    blocks: tuple[int, ...]
    more: Mapping[int, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.document}-{'+'.join(map(str, self.blocks))}"


_TEXTS = '"MyModel", [["a"]], [["bc", "def"]]'
_NAMED = _TEXTS.replace("MyModel", "ModelName")
_ANSWER = {"OUTPUT_1": [[1.0, 2.0, 3.0]]}
_LENGTHS = str(_ANSWER)
_ADDED = '"MyModel", [[1.0], [1.0]], [[2.0, 2.0], [2.0, 2.0]]'
_LINEAR = '  for _ in range(8): ask(triton, "Linear", [[1.0] * 20] * 2)\n'
_SUMS = f"Linear {{'OUTPUT_1': {[[20.0] * 30] * 2}}}"
_SPECS = (
    "tensor tensor1 float32 (-1,)",
    "tensor tensor2 float32 (-1,)",
    "tensor tensor3 float32 (-1,)",
)
_LOST = (
    "no further inferences are possible. because of OverflowError('the model has lost its mind')"
)

PROGRAMS = [
    Program("000", (4, 5, 6, 7), {6: f"ask(triton, {_ADDED})\n"}, (f"MyModel {{'OUTPUT_1': {[[3.0] * 2] * 2}}}",)),
    Program("001", (1,)),
    Program("001", (2,), {2: "print(triton.is_alive())\n"}, ("False",)),
    Program("001", (5,), says=("This print will appear",)),
    Program("001", (6,), {6: f"  ask(triton, {_NAMED})\n"}, (f"ModelName {_LENGTHS}",)),
    Program(
        "001", (7,), {7: '  ask(triton, "Identity", [[7.0]])\n'},
        ("Identity {'OUTPUT_1': [[7.0]]}",),
    ),
    Program("001", (8, 9, 10), {10: _LINEAR}, (_SUMS,)),
    Program("001", (11,), {11: "show_specs(*inputs, *output)\n"}, ("tensor None int32 (-1,)",)),
    Program("001", (12,), {12: "show_specs(*inputs, *outputs)\n"}, ("tensor image float32 (224, 224, 3)",)),
    Program("001", (13,), {13: "show_specs(tensor1, tensor2, tensor3)\n"}, _SPECS),
    Program("001", (14,), {14: "call(infer_fn)\n"}, ("called [[[2.0], [2.0]]]", _LOST)),
    Program("001", (15,), {15: "compare(ModelConfig)\n"}, ("ModelConfig 4 fields, other here: []",)),
    Program("001", (16,), {16: "compare(DynamicBatcher)\n"}, ("DynamicBatcher 7 fields, other here: []",)),
    Program(
        "001", (17,),
        {17: '    ask(triton, "AddSub", [[3.0]], [[1.0]])\n'},
        ("AddSub {'OUTPUT_1': [[4.0]], 'OUTPUT_2': [[2.0]]}",),
    ),
    Program("002", (1,), {1: f"  ask(triton, {_NAMED})\n"}, (f"ModelName {_LENGTHS}",)),
]  # fmt: skip
#: Those that serve until they are told to end, and the one that writes to a file outside of its folder.
SERVING = [
    Program("000", (1, 2, 3), {2: f"    ask(triton, {_TEXTS})\n"}, (f"MyModel {_LENGTHS}",)),
    Program("001", (4,)),
]
LOGGING = Program("001", (3,))
#: (document, example) -> the same text, which is run once.
SAME = {
    ("002", 2): ("001", 7), ("002", 3): ("001", 8), ("002", 4): ("001", 9), ("002", 5): ("001", 10),
    ("002", 6): ("001", 11), ("002", 7): ("001", 12), ("002", 8): ("001", 13), ("002", 9): ("001", 14),
}  # fmt: skip
#: (document, example) -> why it is not run.
NOT_RUN: dict[tuple[str, int], str] = {}


def text(document: str) -> str:
    return DOCUMENTS[document].read_text(encoding="utf-8")


def blocks(document: str) -> dict[int, str]:
    """Return the Python examples of a document by their numbers."""
    return dict(enumerate(_BLOCK.findall(text(document)), 1))


def code(program: Program) -> str:
    """Return a program's source."""
    found = blocks(program.document)
    return _BEFORE + "".join(found[one] + program.more.get(one, "") for one in program.blocks)


def run(program: Program, folder: Path) -> str:
    """Run a script to its end; return its output."""
    with Script(code(program), folder) as script:
        assert script.wait_gone() == 0, script.said()
        return script.said()


@pytest.fixture(scope="module")
def said(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """The output of the requested programs; some run in parallel, as they mostly wait for tritonserver."""
    items: list[Any] = request.session.items
    this = test_the_examples_run_as_written.__name__
    wanted = [
        item.callspec.params["program"]
        for item in items
        if getattr(item, "originalname", "") == this
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {
            str(program): pool.submit(run, program, tmp_path_factory.mktemp("script"))
            for program in wanted
        }
        pool.shutdown(cancel_futures=True)


def test_every_example_is_accounted_for() -> None:
    run = [(one.document, block) for one in (*PROGRAMS, *SERVING, LOGGING) for block in one.blocks]
    found = {
        (document, number): block
        for document in DOCUMENTS
        for number, block in blocks(document).items()
    }
    assert sorted([*run, *SAME, *NOT_RUN]) == sorted(found)
    assert sum(text(document).count("```python") for document in DOCUMENTS) == len(found)
    for one, other in SAME.items():
        assert found[one] == found[other]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_examples_run_as_written(program: Program, said: dict[str, Future[str]]) -> None:
    printed = said[str(program)].result()
    for expected in program.says:
        assert expected in printed


@pytest.mark.parametrize("program", SERVING, ids=str)
def test_the_servers_of_the_examples_serve_until_terminated(
    program: Program, tmp_path: Path
) -> None:
    """`# ...` stands for the code of the previous example, which binds the model."""
    written = code(program)
    if "    # ...\n" in written:
        bound = blocks(program.document)[2].partition("as triton:\n")[2]
        assert 'model_name="MyModel"' in bound
        written = written.replace("    # ...\n", bound)
    with Script(written, tmp_path) as script:
        script.wait_for("Press CTRL+C")
        address = eventually(  # another line than the one above, by another writer
            lambda: re.findall(r"Started HTTPService at (\S+)\s", script.said())[-1:],
            lambda: f"it says where it listens; it said:\n{script.said()}",
        )[0]
        with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=60) as response:
            assert response.status == 200
        if "MyModel" in written:
            assert answer(f"http://{address}", "MyModel", [["a"]], [["bc", "def"]]) == _ANSWER
        assert script.end(signal.SIGTERM) == 0
        for expected in program.says:
            assert expected in script.said()


def test_the_log_goes_to_the_configured_file(tmp_path: Path) -> None:
    """In its folder instead of /tmp, and with the variable that the next lines of the text set."""
    ((variable, value),) = _SHELL.findall(text(LOGGING.document))
    written = code(LOGGING)
    assert written.count('"/tmp/') == 1
    written = written.replace('"/tmp/', f'"{tmp_path}/')
    with Script(written, tmp_path, environment={variable: value}) as script:
        assert script.wait_gone() == 0, script.said()
        assert f"log_verbose_level={value}" in script.said()
    assert "Started HTTPService" in (tmp_path / "triton.log").read_text(encoding="utf-8")
