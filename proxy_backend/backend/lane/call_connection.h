/* The connection on which a worker requests calls to other models. It carries packets, and descriptors of both ends'
 * memory. pytriton/_protocol/calls/call_connection.py describes the protocol. Any thread may send; only one receives.
 */
#ifndef PYTRITON_BACKEND_LANE_CALL_CONNECTION_H
#define PYTRITON_BACKEND_LANE_CALL_CONNECTION_H
#include "wire/msgpack.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct CallConnection CallConnection;

/* Maximum size of a message in either direction. */
enum { MAX_MESSAGE_BYTES = 1 << 16 };

/* Connect to the worker that listens for lanes at `lane_path`. Returns NULL if it does not listen or its backlog is
 * full.
 */
CallConnection *call_connection_open(const char *lane_path);
/* Free a closed connection that no thread uses. */
void call_connection_free(CallConnection *connection);

/* Send a message without blocking. It is queued if the socket is full, and discarded if the worker is gone. */
void call_connection_send(CallConnection *connection, const Buffer *message);
/* Send the descriptor of a memory, and take ownership of it. Returns the memory's number, or 0 without memory. */
int64_t call_connection_announce(CallConnection *connection, int descriptor);
/* Stop the worker from sending. What it has already sent can still be received. */
void call_connection_shutdown_read(CallConnection *connection);
/* Shut down the connection. The receiving thread and the worker notice. */
void call_connection_shutdown(CallConnection *connection);

typedef enum { RECEIVED_MESSAGE, RECEIVED_NOTHING, RECEIVED_END, RECEIVED_FAULT } Received;
/* Wait up to `timeout_ms` (-1: forever) for the next message that is not about memory. It stays valid until the next
 * call. RECEIVED_NOTHING can be returned before the time is over.
 */
Received call_connection_receive(CallConnection *connection, int timeout_ms, Reader *message);
/* Returns how the worker violated the protocol. */
const char *call_connection_fault(const CallConnection *connection);
/* Returns a range of the worker's memory, valid until the receiving thread calls this again. NULL if there is no such
 * memory.
 */
const uint8_t *call_connection_memory(CallConnection *connection, int64_t number, int64_t offset, int64_t size);
/* Close the connection. Only the receiving thread may call this. */
void call_connection_close(CallConnection *connection);

/* Send a packet without waiting. `descriptor` (-1: none) stays open in this process. Returns false with errno. */
bool packet_send(int fd, const void *data, size_t size, int descriptor);

#endif
