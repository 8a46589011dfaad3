"""Registrations and model sizes persisted in the state directory, and their restore at the next start.

May import: the other modules of models, and what is below them.
"""
