/* The protocols' log settings: the core's log, and the frontend's own. Fast enough for a loop. */
#ifndef PYTRITON_FRONTEND_ADMIN_LOG_SETTINGS_H
#define PYTRITON_FRONTEND_ADMIN_LOG_SETTINGS_H

#include "common/buffer.h"
#include "core/server.h"

/* {"log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0, "log_format": "default"}. */
bool log_settings_read(Server *server, Buffer *json, Problem *problem);

/* A setting to change; the type is the one that the client wrote. */
typedef struct {
    Slice name;
    int type; /* PARAMETER_STRING, _INT (not negative), _BOOL */
    union {
        Slice string;
        uint64_t integer;
        bool boolean;
    };
} LogChange;
/* All or nothing. A change is reported. */
bool log_settings_change(Server *server, const LogChange *changes, size_t count, Problem *problem);
/* Write the settings to standard error, in one marked line that the dispatcher reads: workers' own logs follow them. */
void log_settings_report(Server *server);

#endif
