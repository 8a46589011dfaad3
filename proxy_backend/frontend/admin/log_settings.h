/* The log settings of KServe's protocols, for the core's log and the frontend's own. Fast enough for an event loop. */
#ifndef PYTRITON_FRONTEND_ADMIN_LOG_SETTINGS_H
#define PYTRITON_FRONTEND_ADMIN_LOG_SETTINGS_H

#include "common/buffer.h"
#include "core/server.h"

/* Append {"log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0,
 * "log_format": "default"}.
 */
bool log_settings_read(Server *server, Buffer *json, Problem *problem);

/* A setting to change, with the type that the client used. */
typedef struct {
    Slice name;
    int type; /* PARAMETER_STRING, PARAMETER_INT (not negative) or PARAMETER_BOOL */
    union {
        Slice string;
        uint64_t integer;
        bool boolean;
    };
} LogChange;
/* Apply either all changes or none, and report them to the dispatcher. */
bool log_settings_change(Server *server, const LogChange *changes, size_t count, Problem *problem);
/* Write the settings to standard error, in a marked line that the dispatcher reads. Workers' logs follow these
 * settings.
 */
void log_settings_report(Server *server);

#endif
