"""The programs that can serve around Triton's core, called *frontends*: how each is started, configured and administered.

    triton_frontend.py   NVIDIA's executable: its command line; administered over its public ports
    native_frontend.py   our own program: started with a settings document (native_settings.py), administered over a
        private socket; reports which models its clients wait for

Only services.py, which chooses one, imports this package; all others use server/frontend.py. May import: server, and what
it may import.
"""
