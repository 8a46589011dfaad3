"""Warnings of the inference clients.

The clients of this package respect every timeout over either protocol, so they never issue this warning. The class
exists for programs that filter it by name.
"""

from __future__ import annotations

__all__ = ["NotSupportedTimeoutWarning"]


class NotSupportedTimeoutWarning(UserWarning):
    """Warning that the protocol does not support a given timeout. Never issued by this package."""
