"""Models registered by clients: admission, deployment, replacement, persistence, restore, and removal.

Belongs here: registrations, and the operations on them. May import: workers and what is below them.
"""
