"""The dispatcher's end of the control socket: peers and their keys, messages, pending requests.

Belongs here: connections and messages, independent of their subject. May import: base, settings.
"""
