"""Refuses docstrings whose first words leave the subject out, such as "What a client can ask".

    python -m checking.docstrings FOLDER ...

A docstring of a module or class begins with a noun, that of a function with a verb. The patterns below stand for the
inversions that readers stumble over; docs/concepts/glossary.md has the nouns.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: First words -> what to write instead.
REFUSED = {
    r"(What|Who|Whom|Whose|Where|Which|That|Those) ": "begin with the noun that this is about",
    r"(It|They) ": "name the subject",
    r"(Nobody|Nothing) ": "say what happens, in the positive",
    r"As `": "write 'Do the same as `...`'",
    r"From .* to (the|what|a) ": "begin with the noun for the result",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Finding(NamedTuple):
    """A docstring that is refused."""

    line: int
    text: str
    advice: str


def findings(source: str) -> Iterator[Finding]:
    """Yield the docstrings of a module that are refused, from top to bottom."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _DOCUMENTED)]
    for node in nodes:
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        for pattern, advice in REFUSED.items():
            if re.match(pattern, first):
                yield Finding(node.body[0].lineno, first, advice)


def main(folders: list[str]) -> int:
    """Print all findings below the folders; return 1 if there are any."""
    found = 0
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        for finding in sorted(findings(path.read_text(encoding="utf-8"))):
            print(f"{path}:{finding.line}: {finding.text}\n    {finding.advice}")
            found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
