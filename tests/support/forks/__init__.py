"""Forking processes: the fork server with its workers, and the harness around it."""
