"""The line between the daemon and its service manager, by systemd's protocols: states, sockets.

May import: nothing of the daemon.
"""
