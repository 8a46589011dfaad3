"""Lists the external links of the documents, and checks their syntax. Nothing is requested over the network."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from documentation.documents import all_documents

_URL = re.compile(r"https?://[^\s<>\"'`)\]|]+")
#: Hosts of examples: nobody has to answer there (RFC 2606, RFC 5737, this machine).
_EXAMPLES = re.compile(
    r"(localhost|host|node\d*|.*\.example|(.*\.)?example\.(com|org|net)|127(\.\d+){3}|0\.0\.0\.0|10(\.\d+){3}|192\.0\.2\.\d+)"
)
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.M | re.S)


class Link(NamedTuple):
    """A link to another site."""

    url: str
    path: Path
    line: int

    @property
    def fault(self) -> str:
        """The problems with its syntax."""
        parts = urlsplit(self.url)
        if parts.scheme != "https":
            return "say https"
        if "." not in parts.netloc or parts.netloc != parts.netloc.lower():
            return "that is no name of a host"
        if "@" in parts.netloc or parts.query.startswith("utm_"):
            return "it tells who has followed it"
        return ""


def links(root: Path) -> Iterator[Link]:
    """Yield the external links of all documents, except those in code and those to example hosts."""
    for path in all_documents(root):
        text = path.read_text(encoding="utf-8")
        plain = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
        plain = re.sub(r"`[^`\n]*`", "", plain)
        for match in _URL.finditer(plain):
            url = match[0].rstrip(".,;:")
            if not _EXAMPLES.fullmatch(urlsplit(url).hostname or ""):
                yield Link(url, path.relative_to(root), plain.count("\n", 0, match.start()) + 1)


def main() -> int:
    """Print the links, sorted by address, and their problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="scripts/docs --links", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    wrong = 0
    for link in sorted(links(parser.parse_args().root)):
        wrong += bool(link.fault)
        print(
            f"{link.url}  {link.path}:{link.line}{f'  WRONG: {link.fault}' if link.fault else ''}"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
