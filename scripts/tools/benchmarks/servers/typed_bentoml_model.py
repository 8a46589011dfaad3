"""The functions as a BentoML service: JSON validated by pydantic, and an uploaded file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bentoml
import typed_work


@bentoml.service(workers=1, traffic={"timeout": 60})
class Served:
    """The service."""

    @bentoml.api
    def predict(self, text: str, top_k: int = 3) -> list[dict[str, Any]]:
        """Label a text."""
        return typed_work.predict(text, top_k)

    @bentoml.api
    def measure(self, image: Path) -> dict[str, int]:
        """Measure an upload."""
        return typed_work.measure(image.read_bytes())
