"""Persists registrations and model sizes in the state directory, and restores them at the next start.

May import: the other modules of models, and what is below them.
"""
