"""The dispatcher's end of the control socket: peers and their keys, messages, pending requests.

Belongs here: connections and messages, whatever they are about. May import: base, settings.
"""
