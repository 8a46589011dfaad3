/* Hands over clients' connections to the process that replaces this one, without the clients noticing.
 *
 *     retiring process ── a byte with the client's descriptor, on a new connection ──▶ successor, at its endpoint "handover"
 *
 * The byte is the index of the connection's endpoint. Both processes have the same endpoints in the same order. A
 * connection is handed over between two requests, when this process has no unread or unsent data. Data that the client
 * sends meanwhile stays in the socket, and the successor reads it.
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
