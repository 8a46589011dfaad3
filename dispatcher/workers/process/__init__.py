"""A single worker: its slot, its process or its registrant's thread, its start, loading and limits.

Belongs here: code about one worker that does not depend on its pool. May import: server and the packages below it;
nothing else of workers.
"""
