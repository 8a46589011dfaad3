"""Clients that send requests continuously while a test does something to the daemon."""
