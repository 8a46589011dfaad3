"""The programs around Triton's core, called *frontends*: how each is started, configured and administered.

    triton_frontend.py   NVIDIA's executable: started with command-line options, administered over its public ports
    native_frontend.py   our own program: started with a settings document (native_settings.py), administered over a
                         private socket; lets requests wait for models

Only services.py imports this package, to choose one; everything else uses server/frontend.py. May import: what server
may import, and server.
"""
