/* Triton's core and its protocols, configured by the settings. */
#ifndef PYTRITON_FRONTEND_STARTUP_SERVICES_H
#define PYTRITON_FRONTEND_STARTUP_SERVICES_H

#include "core/server.h"
#include "handover/handover.h"
#include "http/service.h"
#include "startup/settings.h"

typedef struct Services Services;

/* Load what the settings need: the core's functions, and other libraries. Starts nothing. */
bool services_load(const Settings *settings, Problem *problem);
/* Start the core, which returns when its initial models are loaded, and create the services. The caller keeps
 * `control`: the actions that the dispatcher may request.
 */
Services *services_start(const Settings *settings, const ServerControl *control, Problem *problem);
/* Returns the endpoints: one per entry of the settings, in order. They stay until services_free. */
const HandoverEndpoints *services_endpoints(const Services *services);
/* Log where clients are accepted. */
void services_announce(const Services *services);
Server *services_server(const Services *services);
/* Stop the core. Drops queued jobs; waits for running ones, and for requests in flight at most for the exit timeout.
 * Loops must still run: jobs and answers use them.
 */
void services_stop(Services *services);
/* Called after the loops have ended. */
void services_free(Services *services);

/* Write the frontend's own metrics in Prometheus's text format. */
void services_put_metrics(void *user, Buffer *text);

#endif
