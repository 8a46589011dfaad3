"""What the command line and the daemon know of this machine: settings, installation, checks."""

from __future__ import annotations
