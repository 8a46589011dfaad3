"""The endpoints for FastAPI."""

from __future__ import annotations

import enum
import io
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pydantic
from fastapi import Body, FastAPI, HTTPException, Request, Response, UploadFile
from fastapi.responses import StreamingResponse
from PIL import Image, UnidentifiedImageError

app = FastAPI()
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


@dataclass
class Point:
    x: Value
    y: Value


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()


@app.post("/labels")
def labels(text: Annotated[str, Body()], top_k: Annotated[int, Body()] = 2) -> list[str]:
    return sorted(set(text.split()))[:top_k]


@app.post("/churn")
def churn(customer: Customer) -> Scored:
    return Scored(churn=min(1.0, customer.age / 100), city=customer.city)


@app.post("/image_size")
def image_size(image_file: UploadFile) -> dict[str, int]:
    try:
        width, height = Image.open(image_file.file).size
    except UnidentifiedImageError as error:
        raise HTTPException(422, "not an image") from error
    return {"width": width, "height": height}


@app.post("/picture")
def picture(width: Annotated[Pixels, Body()], height: Annotated[Pixels, Body()]) -> Response:
    return Response(png(width, height), media_type="image/png")


@app.post("/words")
def words(text: Annotated[str, Body(embed=True)]) -> StreamingResponse:
    events = (f"data: {json.dumps(word, ensure_ascii=False)}\n\n" for word in text.split())
    return StreamingResponse(events, media_type="text/event-stream")


@app.post("/shout")
async def shout(text: Annotated[str, Body(embed=True)]) -> str:
    return text.upper()


@app.post("/lengths")
def lengths(text: Annotated[str, Body(embed=True)]) -> int:
    return len(text)


@app.post("/paint")
def paint(
    colour: Annotated[Colour, Body()], finish: Annotated[Literal["matt", "gloss"], Body()]
) -> dict[str, str]:
    return {"paint": f"{finish} {colour.value}"}


@app.post("/norms")
def norms(
    rows: Annotated[list[list[Value]], Body()], points: Annotated[list[Point], Body()]
) -> dict[str, list[float]]:
    return {
        "rows": [sum(value * value for value in row) for row in rows],
        "points": [point.x + point.y for point in points],
    }


@app.post("/optional")
def optional(
    a: Annotated[Optional[int], Body()] = None,
    b: Annotated[Optional[str], Body()] = "b",
    c: Annotated[Optional[list[int]], Body()] = None,
) -> Any:
    return {"a": a, "b": b, "c": c}


@app.post("/size")
async def size(request: Request) -> dict[str, int]:
    return {"size": len(await request.body())}


@app.post("/reverse")
async def reverse(request: Request) -> Response:
    data = (await request.body())[::-1]
    return Response(data, media_type="application/octet-stream")
