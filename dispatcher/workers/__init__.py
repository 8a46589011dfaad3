"""Workers: starting, supervising and stopping them, scaling and suspending pools, and assigning proxies to workers.

Belongs here: the lifecycle of a registration's workers. A `Pool` has `Instances`, each with a `Supervisor`, which gets
its workers from the `WorkerFactory`: a `WorkerProcess` (forked by one of the `ForkServers`, if possible) or a
`HostedWorker`. The contract "workers" in pyproject.toml has the order of imports. May import: server and the packages
below it.
"""
