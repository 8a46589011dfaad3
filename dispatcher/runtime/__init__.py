"""Foundations of the dispatcher: child processes, signals, log files and states.

Belongs here: code that does not depend on models, tritonserver or workers. May import: the settings, and
`scaling.memory_policy`.
"""
