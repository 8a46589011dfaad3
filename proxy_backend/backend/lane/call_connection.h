/* The connection on which a worker requests calls to other models: packets, and memory of both ends. The protocol is
 * that of pytriton/_protocol/calls/call_connection.py. Any thread may send; one receives.
 */
#ifndef PYTRITON_BACKEND_LANE_CALL_CONNECTION_H
#define PYTRITON_BACKEND_LANE_CALL_CONNECTION_H
#include "wire/msgpack.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct CallConnection CallConnection;

/* Both ends refuse longer messages. */
enum { MAX_MESSAGE_BYTES = 1 << 16 };

/* Connect to the worker that listens for lanes at `lane_path`. Returns NULL if it does not listen or has no room. */
CallConnection *call_connection_open(const char *lane_path);
/* Free a closed connection that is no longer used. */
void call_connection_free(CallConnection *connection);

/* Send a message without blocking; it is queued if the worker has no room. Does nothing if the worker is gone. */
void call_connection_send(CallConnection *connection, const Buffer *message);
/* Take over a memory's descriptor and pass it on. Returns the memory's number; 0 without memory. */
int64_t call_connection_announce(CallConnection *connection, int descriptor);
/* Stop the worker from sending more; messages already sent can still be received. */
void call_connection_shutdown_read(CallConnection *connection);
/* Shut the connection down, so that the receiving thread and the worker see its end. */
void call_connection_shutdown(CallConnection *connection);

typedef enum { RECEIVED_MESSAGE, RECEIVED_NOTHING, RECEIVED_END, RECEIVED_FAULT } Received;
/* Wait up to `timeout_ms` (-1: forever) for the next message that is not about memory. It stays valid until the next
 * call. RECEIVED_NOTHING may come early.
 */
Received call_connection_receive(CallConnection *connection, int timeout_ms, Reader *message);
/* Returns how the worker broke the protocol. */
const char *call_connection_fault(const CallConnection *connection);
/* Returns bytes of one of the worker's memories, valid until this thread's next call. NULL: the worker has no such
 * memory.
 */
const uint8_t *call_connection_memory(CallConnection *connection, int64_t number, int64_t offset, int64_t size);
/* Close the connection. Called by the receiving thread. */
void call_connection_close(CallConnection *connection);

/* Send a packet without waiting for room. A `descriptor` (-1: none) stays open here. Returns false with errno. */
bool packet_send(int fd, const void *data, size_t size, int descriptor);

#endif
