"""Workers: supervised, pooled for one registration, put to sleep, and chosen for proxies.

Belongs here: the life of a registration's pool; a single worker is in one_worker. May import: triton and what is
below it.
"""
