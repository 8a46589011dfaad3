"""Fake nodes of a fleet, and a fake Ray."""
