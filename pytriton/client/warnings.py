"""Warnings of the clients.

The clients of this package respect every time-out over either protocol, so nothing here is issued by them; the
class exists for programs that filter it by name.
"""

from __future__ import annotations

__all__ = ["NotSupportedTimeoutWarning"]


class NotSupportedTimeoutWarning(UserWarning):
    """A time-out was given that the protocol does not support. Never issued by this package."""
