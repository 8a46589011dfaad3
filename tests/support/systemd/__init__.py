"""A Debian with systemd as its first process, for tests that need a real service manager."""
