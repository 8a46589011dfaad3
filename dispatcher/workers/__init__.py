"""Workers: their start and exit, supervision, scaling and suspension of pools, and routing of proxies.

Belongs here: the lifecycle of a registration's workers. A `Pool` has `Instances`, each with a `Supervisor`, which gets
its workers from the `WorkerFactory`: a `WorkerProcess` (forked by one of the `ForkServers`, if possible) or a
`HostedWorker`. The contract "workers" in pyproject.toml has the order of imports. May import: server and the packages
below it.
"""
