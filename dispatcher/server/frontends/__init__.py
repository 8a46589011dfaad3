"""The programs that can serve around Triton's core, a *front* each: how one is started, told its settings, and asked.

    triton_frontend.py   NVIDIA's executable: its options (command_line.py); asked over its public ports (admin_client.py)
    native_frontend.py   our own program: its settings (native_settings.py); asked over a private socket (native_admin.py);
                      tells which models its clients wait for (on_demand_load.py)

Belongs here: what one of them has and the other has not. services.py, which chooses one, alone imports this folder;
all others know server/frontend.py. May import: triton, and what triton may.
"""
