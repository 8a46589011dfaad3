"""Worker pools: supervision, scaling, suspension, and routing of proxies to workers.

Belongs here: the lifecycle of a registration's pool; a single worker is in `process`. May import: server and the
packages below it.
"""
