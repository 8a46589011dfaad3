/* The connection on which a worker requests calls to other models: packets, and memory of both ends. The protocol is
 * that of pytriton/_protocol/calls/call_connection.py. Any thread may send; one receives.
 */
#ifndef PYTRITON_CONNECTION_H
#define PYTRITON_CONNECTION_H

#include "wire/msgpack.h"

typedef struct Connection Connection;

/* Both ends refuse longer messages. */
enum { MOST_BYTES = 1 << 16 };

/* Connect to the worker that listens for lanes at `lane_path`. Returns NULL if it does not listen or has no room. */
Connection *connection_open(const char *lane_path);
/* Free a closed connection that is no longer used. */
void connection_free(Connection *connection);

/* Send a message without blocking; it is queued if the worker has no room. Does nothing if the worker is gone. */
void connection_send(Connection *connection, const Buffer *message);
/* Take over a memory's descriptor and pass it on. Returns the memory's number; 0 without memory. */
int64_t connection_announce(Connection *connection, int descriptor);
/* Stop the worker from sending more; messages already sent can still be received. */
void connection_take_no_more(Connection *connection);
/* Shut the connection down, so that the receiving thread and the worker see its end. */
void connection_hang_up(Connection *connection);

typedef enum { HEARD_MESSAGE, HEARD_NOTHING, HEARD_END, HEARD_FAULT } Heard;
/* Wait up to `timeout_ms` (-1: forever) for the next message that is not about memory. It stays valid until the next
 * call. HEARD_NOTHING may come early.
 */
Heard connection_receive(Connection *connection, int timeout_ms, Reader *message);
/* Returns how the worker broke the protocol. */
const char *connection_fault(const Connection *connection);
/* Returns bytes of one of the worker's memories, valid until this thread's next call. NULL: the worker has no such
 * memory.
 */
const uint8_t *connection_memory(Connection *connection, int64_t number, int64_t offset, int64_t size);
/* Close the connection. Called by the receiving thread. */
void connection_close(Connection *connection);

#endif
