"""Structured output: each token is chosen from those that can lead to JSON of the client's schema.

    pip install outlines_core
    python examples/openai/structured.py

The "model" chooses at random, which shows that the schema alone makes the answer valid. With a real model, the guide's
tokens mask the scores of each step.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import APIError, ChatRequest

#: A token is a character here; a real model has those of its tokenizer.
CHARACTERS = string.ascii_letters + string.digits + ' {}[]":,.-_'
END = len(CHARACTERS)
#: An answer that gets longer takes what ends it soonest.
LONG = 400


class Structured:
    """The callable. Each worker creates one."""

    def __init__(self) -> None:
        from outlines_core import Vocabulary

        tokens: Any = {one: [index] for index, one in enumerate(CHARACTERS)}
        self._vocabulary = Vocabulary(END, tokens)
        self._indexes: dict[str, Any] = {}

    def __call__(self, request: ChatRequest) -> Iterator[str]:
        """Answer with JSON."""
        form = request.response_format or {}
        schema = form.get("json_schema", {}).get("schema")
        if form.get("type") != "json_schema" or schema is None:
            raise APIError(
                "Send a response_format of the type json_schema.", param="response_format"
            )
        yield from self._characters(schema, random.Random(request.seed))

    def _characters(self, schema: Any, chance: random.Random) -> Iterator[str]:
        from outlines_core import Guide

        guide = Guide(self._index(schema))
        length = 0
        while not guide.is_finished():
            allowed = guide.get_tokens()
            ending = [one for one in allowed if one == END or CHARACTERS[one] in '"}],']
            token = chance.choice(ending if length > LONG and ending else allowed)
            guide.advance(token)
            length += 1
            if token == END:
                return
            yield CHARACTERS[token]

    def _index(self, schema: Any) -> Any:
        """Return the index of a schema, which takes longer to build than an answer."""
        from outlines_core import Index
        from outlines_core.json_schema import build_regex_from_schema

        text = json.dumps(schema)
        if text not in self._indexes:
            try:
                pattern = build_regex_from_schema(text, whitespace_pattern=" ?")
            except (ValueError, TypeError, NotImplementedError) as error:
                message = f"The schema is not supported: {error}"
                raise APIError(message, param="response_format") from error
            self._indexes[text] = Index(pattern, self._vocabulary)
        return self._indexes[text]


if __name__ == "__main__":
    connect().register(Structured, "structured", openai="chat", factory=True, replace=True)
