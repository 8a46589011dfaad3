"""Workers: how one starts and ends, the supervision, scaling and suspension of a pool, and the routing of proxies.

Belongs here: the lifecycle of a registration's pool. Its layers, each of which imports only those below it:

    pool ▶ routing ▶ instances ▶ supervisor ▶ prestarted, model_counters, memory_account ▶ worker_factory
    ▶ worker_process, hosted_worker ▶ fork_servers, worker, slots

May import: server and the packages below it.
"""
