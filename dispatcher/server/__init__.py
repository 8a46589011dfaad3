"""tritonserver as the daemon runs it: start, restart, readiness, models and administration.

    tritonserver.py     what the daemon uses: load, unload, states, readiness, replacement; one object for its lifetime
    restart.py          the first start, and restarts with back-off after an unexpected exit
    server_process.py   one process: start, readiness, liveness probes, exit
    preload_layout.py   models to load before the ports open, and the gate that controls readiness
    frontend.py         interface to the program around Triton's core: how it is started and administered
    frontends/          its implementations: NVIDIA's executable, and our own program
    own_repository.py   tritonserver's model repository, and the configurations that route models to workers
    endpoints.py        addresses and ports for clients
    cloud_frontends.py  the endpoints of SageMaker and Vertex AI
    admin_token.py      the token that guards administrative endpoints
    private_shm.py      launcher that keeps tritonserver's shared memory private

May import: control, telemetry.events, runtime, and pytriton._host.
"""
