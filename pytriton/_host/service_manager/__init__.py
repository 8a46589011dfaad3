"""Communication with the service manager by systemd's protocols: state notification, socket activation.

May import: nothing of the daemon.
"""
