"""The models that clients registered: admitted, served, replaced, kept on disk, restored, unregistered.

Belongs here: registrations and the registry that holds them. May import: workers and what is below them.
"""
