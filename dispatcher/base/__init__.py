"""What every other room of the dispatcher stands on: child processes, signals, files, logs, states.

Belongs here: what knows nothing of models, tritonserver or workers. May import: the settings.
"""
