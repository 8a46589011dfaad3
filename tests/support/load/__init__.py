"""Clients that ask without a pause while a test does something to the daemon."""
