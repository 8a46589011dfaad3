"""The event log: each decision of the daemon is an event, with its time, reason, numbers and who asked for it.

Belongs here: which kinds of events there are, and where they go. May import: base, settings. Whoever decides
something is given an `Events` by its maker, and tells it.
"""
