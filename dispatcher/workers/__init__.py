"""Workers: started, numbered, supervised, limited, pooled for one registration, and chosen for proxies.

Belongs here: the life of one worker and of a registration's pool. May import: triton and what is below it.
"""
