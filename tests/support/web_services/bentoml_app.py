"""The endpoints for BentoML. A stream is text, so `words` writes the events itself."""

from __future__ import annotations

import enum
import json
from collections.abc import Generator
from typing import Annotated, Any, Literal, Optional

import bentoml
import pydantic
from PIL import Image

Pixels = Annotated[int, pydantic.Field(ge=1, le=1000)]
Value = Annotated[float, pydantic.Field(ge=-1e6, le=1e6)]


class Customer(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=150)
    income: float
    city: Optional[str] = None


class Scored(pydantic.BaseModel):
    churn: float
    city: Optional[str] = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(pydantic.BaseModel):
    x: Value
    y: Value


@bentoml.service
class Service:
    @bentoml.api
    def labels(self, text: str, top_k: int = 2) -> list[str]:
        return sorted(set(text.split()))[:top_k]

    @bentoml.api
    def churn(self, customer: Customer, /) -> Scored:
        return Scored(churn=min(1.0, customer.age / 100), city=customer.city)

    @bentoml.api
    def image_size(self, image_file: Image.Image) -> dict[str, int]:
        return {"width": image_file.width, "height": image_file.height}

    @bentoml.api
    def picture(self, width: Pixels, height: Pixels) -> Image.Image:
        return Image.new("RGB", (width, height), (200, 30, 30))

    @bentoml.api
    def words(
        self, text: str
    ) -> Annotated[Generator[str, None, None], bentoml.validators.ContentType("text/event-stream")]:
        for word in text.split():
            yield f"data: {json.dumps(word, ensure_ascii=False)}\n\n"

    @bentoml.api
    async def shout(self, text: str) -> str:
        return text.upper()

    @bentoml.api(batchable=True, max_batch_size=16)
    def lengths(self, text: list[str]) -> list[int]:
        return [len(one) for one in text]

    @bentoml.api
    def paint(self, colour: Colour, finish: Literal["matt", "gloss"]) -> dict[str, str]:
        return {"paint": f"{finish} {colour.value}"}

    @bentoml.api
    def norms(self, rows: list[list[Value]], points: list[Point]) -> dict[str, list[float]]:
        return {
            "rows": [sum(value * value for value in row) for row in rows],
            "points": [point.x + point.y for point in points],
        }

    @bentoml.api
    def optional(
        self, a: Optional[int] = None, b: Optional[str] = "b", c: Optional[list[int]] = None
    ) -> dict[str, Any]:
        return {"a": a, "b": b, "c": c}

    @bentoml.api
    def size(self, data: bytes, /) -> dict[str, int]:
        return {"size": len(data)}

    @bentoml.api
    def reverse(
        self, data: bytes, /
    ) -> Annotated[bytes, bentoml.validators.ContentType("application/octet-stream")]:
        return data[::-1]
