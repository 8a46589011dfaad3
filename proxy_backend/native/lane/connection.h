/* The connection on which a worker asks for calls to other models: packets, and memory of both ends.
 * The protocol is that of pytriton/_protocol/calls/call_connection.py. Any thread sends; one receives.
 */
#ifndef PYTRITON_CONNECTION_H
#define PYTRITON_CONNECTION_H

#include "wire/msgpack.h"

typedef struct Connection Connection;

/* Longer messages are refused by both ends. */
enum { MOST_BYTES = 1 << 16 };

/* Connect to the worker that listens for lanes at `lane_path`. NULL: it does not listen, or has no room. */
Connection *connection_open(const char *lane_path);
/* Free a connection that is closed and no longer used. */
void connection_free(Connection *connection);

/* Send a message without waiting: it goes later if the worker has no room. Nothing happens if the worker is gone. */
void connection_send(Connection *connection, const Buffer *message);
/* Take a descriptor of memory over and pass it on. Returns the memory's number; 0: there is no memory left. */
int64_t connection_announce(Connection *connection, int descriptor);
/* Let the worker send nothing more; what it has sent can still be received. */
void connection_take_no_more(Connection *connection);
/* Close the connection, so that the receiving thread and the worker see its end. */
void connection_hang_up(Connection *connection);

typedef enum { HEARD_MESSAGE, HEARD_NOTHING, HEARD_END, HEARD_FAULT } Heard;
/* Wait for the next message that is not about memory, no longer than `timeout_ms` (-1: for ever). It stays valid
 * until the next call. HEARD_NOTHING may come early. */
Heard connection_receive(Connection *connection, int timeout_ms, Reader *message);
/* The worker's breach of the protocol, as text. */
const char *connection_fault(const Connection *connection);
/* Returns bytes of one of the worker's memories, valid until this thread's next call. NULL: it has no such memory. */
const uint8_t *connection_memory(Connection *connection, int64_t number, int64_t offset, int64_t size);
/* To be called by the thread that received. */
void connection_close(Connection *connection);

#endif
