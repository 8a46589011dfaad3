"""Communicates with the service manager by systemd's protocols: state notifications and socket activation.

Imports no other package of the project.
"""
