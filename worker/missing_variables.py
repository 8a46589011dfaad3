"""A helpful KeyError for environment variables that were not forwarded from the registrant to its worker."""

from __future__ import annotations

import os
from collections.abc import Iterable


def explain_missing(stayed: Iterable[str]) -> None:
    """Make the KeyError of `os.environ["X"]` explain why each of these variables is missing."""
    _Environment.stayed = frozenset(stayed)
    os.environ.__class__ = _Environment


# mypy does not allow os.environ's class as a base: it is generic, but only in its stubs.
class _Environment(type(os.environ)):  # type: ignore[misc]
    """os.environ's own class, with better errors."""

    stayed: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)  # type: ignore[no-any-return]
        except KeyError:
            raise KeyError(_Missing(key) if key in self.stayed else key) from None


class _Missing(str):
    """The name in a KeyError, which displays nothing but its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"{super().__repr__()} (this environment variable is set where the model was registered, but was not forwarded: "
            "it looks like a secret, or belongs to that session or interpreter. "
            f"register(..., env=[{super().__repr__()}]) sends it, of a model of a repository the setting model_env)"
        )
