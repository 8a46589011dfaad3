"""Communicates with the service manager through systemd's protocols: state notifications and socket activation.

Imports no other package of the project.
"""
