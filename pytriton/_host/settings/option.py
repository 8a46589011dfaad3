"""The metadata in a setting's declaration, beside its type and default."""

from __future__ import annotations

from dataclasses import dataclass

from pytriton._host.settings import parsing as values
from pytriton._host.settings.parsing import Kind

#: Values that many settings have.
PORT = values.integer(0, 65535)
SECONDS = values.number(0)


@dataclass(frozen=True)
class Option:
    """A setting's help text, its kind of values and its former name.

    Args:
        help: what it does
        kind: which values it takes
        formerly: the name that it had, which is read, too
    """

    help: str
    kind: Kind
    formerly: str = ""

    def check(self, name: str, value: object) -> None:
        """See that a value is allowed.

        Raises:
            ValueError: it is not; names the setting.
        """
        try:
            self.kind.read(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
