"""The tritonserver that the daemon owns: its command line, start, readiness, admin client, repository and end.

Belongs here: what talks to tritonserver or prepares it. May import: install, control, base, settings.
"""
