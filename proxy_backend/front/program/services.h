/* Triton's core, and the protocols around it, as the settings want them. */
#ifndef PYTRITON_FRONT_SERVICES_H
#define PYTRITON_FRONT_SERVICES_H

#include "core/server.h"
#include "handover/handover.h"
#include "http/service.h"
#include "program/settings.h"

typedef struct Services Services;

/* Load what the settings need: the core's functions, and libraries of others. Nothing runs yet. */
bool services_load(const Settings *settings, Problem *problem);
/* Start the core, which takes until the models of its start are loaded, and make the services. `control` stays the caller's: what the dispatcher may ask. */
Services *services_start(const Settings *settings, const ServerControl *control, Problem *problem);
/* What listens: as many as the settings have, in their order. They stay until services_free. */
const HandoverEndpoints *services_endpoints(const Services *services);
/* Tell in the log where clients are accepted. */
void services_announce(const Services *services);
Server *services_server(const Services *services);
/* End the core. Jobs that wait are dropped, and those that run waited for; requests under way as well, at most for the exit timeout. Loops must still
 * run: jobs and answers use them. */
void services_stop(Services *services);
/* After the loops' end. */
void services_free(Services *services);

/* The front's own metrics, in Prometheus' text. */
void services_put_metrics(void *user, Text *text);

#endif
