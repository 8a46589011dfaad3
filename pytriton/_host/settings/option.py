"""The metadata of a setting's declaration, beside its type and default."""

from __future__ import annotations

from dataclasses import dataclass

from pytriton._host.settings import parsing as values
from pytriton._host.settings.parsing import Kind

#: Validators that many settings use.
PORT = values.integer(0, 65535)
SECONDS = values.number(0)


@dataclass(frozen=True)
class Option:
    """A setting's help text, its validator and its former name.

    Args:
        help: what the setting does
        kind: the validator of its values
    """

    help: str
    kind: Kind

    def check(self, name: str, value: object) -> None:
        """Check that a value is allowed.

        Raises:
            ValueError: the value is not allowed; the text names the setting.
        """
        try:
            self.kind.read(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
