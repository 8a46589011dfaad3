"""The daemon's end of the control socket. Nothing here depends on what the messages are about.

    control_socket.py     the sockets: admits and parses messages, calls their handler, answers
    peers.py              identifies the sender of a message, and admits or refuses the sender
    pending_requests.py   requests in progress: limited in number, cancelled when the client exits

May import: telemetry.events, runtime, and pytriton._host.
"""
