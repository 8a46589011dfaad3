"""Host-side code shared by the command line and the daemon: settings, installation, checks."""

from __future__ import annotations
