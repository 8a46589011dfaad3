"""Models registered by clients: admission, deployment, replacement, persistence, restore, and removal.

Belongs here: registrations and the registry that holds them. May import: workers and what is below them.
"""
