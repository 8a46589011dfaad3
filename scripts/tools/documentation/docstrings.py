"""A griffe extension for the docstrings of this project, configured in mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTIONS = {
    r"^Example:$": "Examples:",  # griffe would not treat it as a section
    r"^Raises \(when called\):$": "Raises:",
}


class Docstrings(griffe.Extension):
    """Rename sections so that griffe knows them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was just loaded."""
        if obj.docstring is None:
            return
        for pattern, section in _SECTIONS.items():
            obj.docstring.value = re.sub(pattern, section, obj.docstring.value, flags=re.M)
        if isinstance(obj, griffe.Class) and any("Struct" in str(base) for base in obj.bases):
            # msgspec makes the constructor of a struct from its fields.
            obj.docstring.value = re.sub(r"^Args:$", "Attributes:", obj.docstring.value, flags=re.M)
