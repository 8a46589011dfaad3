/* Connections of clients that go from a process to the one that takes its place, without their clients noticing.
 *
 *     retiring process ── a byte with the client's descriptor, on a connection of its own ──▶ successor, at its endpoint "handover"
 *
 * The byte says to which of the endpoints the connection belongs: both processes have the same ones, in the same order. A connection is handed over
 * between two requests, when nothing of it has been read or is to be written here. What the client sends in that moment stays in its socket, and the
 * successor reads it.
 */
#ifndef PYTRITON_FRONT_HANDOVER_H
#define PYTRITON_FRONT_HANDOVER_H

#include "net/connection.h"

/* All endpoints of a process, which stay. It is the `service` of the endpoint on which connections are taken over. */
typedef struct {
    const Endpoint *all;
    size_t count;
} HandoverEndpoints;

extern const Protocol handover_protocol;

/* Hand connections of these endpoints over to the process that listens at `path` from now on; NULL: there is none that could take them. Before
 * connections_retire. */
bool handover_begin(const HandoverEndpoints *endpoints, const char *path, Problem *problem);
/* Whether a connection could be handed over at all: there is a successor, and it is not encrypted. */
bool handover_is_possible(const Connection *connection);
/* Hand a connection over. It must be one that nothing is under way on. False: not now, or never. The loop's thread. */
bool handover_give(Connection *connection);

#endif
