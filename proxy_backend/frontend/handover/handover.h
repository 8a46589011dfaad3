/* Hands clients' connections over to the process that replaces this one, unnoticed by the clients.
 *
 *     retiring process ── a byte with the client's descriptor, on a new connection ──▶ successor, at its endpoint "handover"
 *
 * The byte is the number of the connection's endpoint: both processes have the same endpoints, in the same order. A
 * connection is handed over between two requests, when it has no unread or unsent data here. Data that the client sends
 * during this stays in its socket, and the successor reads it.
 */
#ifndef PYTRITON_FRONTEND_HANDOVER_H
#define PYTRITON_FRONTEND_HANDOVER_H

#include "net/connection.h"

/* All endpoints of a process. They must stay valid. This is the `service` of the endpoint that takes over connections.
 */
typedef struct {
    const Endpoint *all;
    size_t count;
} HandoverEndpoints;

extern const Protocol handover_protocol;

/* From now on, hand over connections to the process that listens at `path`, or to none if it is NULL. Must be called
 * before connections_retire.
 */
bool handover_begin(const HandoverEndpoints *endpoints, const char *path, Problem *problem);
/* Returns whether a connection can be handed over: there is a successor, and the connection is not encrypted. */
bool handover_is_possible(const Connection *connection);
/* Hand over a connection without a request in flight. Returns false if that is impossible now or in general. Only in
 * the loop's thread.
 */
bool handover_give(Connection *connection);

#endif
