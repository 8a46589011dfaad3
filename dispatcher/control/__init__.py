"""The dispatcher's end of the control socket: who may speak, what they asked, what still waits for an answer.

Belongs here: connections and messages, whatever they are about. May import: base, settings.
"""
