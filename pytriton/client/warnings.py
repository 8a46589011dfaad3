"""Warnings of the clients.

The clients of this package respect every timeout over either protocol and never issue these warnings; the class
exists for programs that filter it by name.
"""

from __future__ import annotations

__all__ = ["NotSupportedTimeoutWarning"]


class NotSupportedTimeoutWarning(UserWarning):
    """A timeout was given that the protocol does not support. Never issued by this package."""
