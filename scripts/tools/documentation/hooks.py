"""A mkdocs hook that adds the generated pages, configured in mkdocs.yml."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from documentation import command_pages, python_pages, reference_pages, root_pages

ROOT = Path(__file__).resolve().parents[3]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        **root_pages.pages(ROOT),
        **command_pages.pages(),
        **python_pages.pages(),
        **reference_pages.pages(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files
