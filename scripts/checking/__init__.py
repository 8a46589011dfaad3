"""Checks of texts that linters for code do not make; see scripts/lint."""
