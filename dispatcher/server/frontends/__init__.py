"""The programs that can serve around Triton's core, called *frontends*: how each is started, configured and administered.

    triton_frontend.py   NVIDIA's executable: options in command_line.py; administered over its public ports
        (admin_client.py)
    native_frontend.py   our own program: settings in native_settings.py; administered over a private socket
        (native_admin.py); reports which models its clients wait for (on_demand_load.py)

Belongs here: what is specific to one of them. Only services.py, which chooses one, imports this package; all others use
server/frontend.py. May import: triton, and what triton may.
"""
