/* Creates Triton's core and the services of its protocols, as configured. */
#ifndef PYTRITON_FRONTEND_STARTUP_SERVICES_H
#define PYTRITON_FRONTEND_STARTUP_SERVICES_H

#include "core/server.h"
#include "handover/handover.h"
#include "http/service.h"
#include "startup/settings.h"

typedef struct Services Services;

/* Load the core's functions and the other libraries that the settings need. Starts nothing. */
bool services_load(const Settings *settings, Problem *problem);
/* Start the core and create the services. Returns when the core has loaded its initial models. `control` has the
 * actions that the dispatcher can request; the caller keeps it.
 */
Services *services_start(const Settings *settings, const ServerControl *control, Problem *problem);
/* Returns the endpoints, in the order of the settings. They are valid until services_free. */
const HandoverEndpoints *services_endpoints(const Services *services);
/* Log the addresses at which clients are accepted. */
void services_announce(const Services *services);
Server *services_server(const Services *services);
/* Stop the core. Drops queued jobs; waits for running ones, and up to the exit timeout for requests in flight. The
 * loops must still be running, since jobs and answers use them.
 */
void services_stop(Services *services);
/* Free the services. Must be called after the loops have ended. */
void services_free(Services *services);

/* Write the frontend's own metrics in Prometheus's text format. */
void services_put_metrics(void *user, Buffer *text);

#endif
