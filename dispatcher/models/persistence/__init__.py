"""Registrations and sizes that outlive the daemon, in the state directory, and how the next start serves them again.

May import: the other modules of models, and what is below them.
"""
