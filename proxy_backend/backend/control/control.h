/* The client of the dispatcher's control socket: see pytriton/_protocol/control.py for the frames and messages. */
#ifndef PYTRITON_BACKEND_CONTROL_H
#define PYTRITON_BACKEND_CONTROL_H

#include "wire/msgpack.h"

/* A connection. It serializes the requests of several threads. */
typedef struct Control Control;

/* `endpoint`: "ipc:///path", or "ipc://@name" for an abstract one. It connects on the first request. */
Control *control_new(const char *endpoint);
void control_free(Control *control);

/* Send a request and wait for the answer, which is returned in `reply`, for buffer_free: a MessagePack map. Returns
 * NULL, or why there is no answer, for free(): the dispatcher's error text, or a transport error. `timeout_ms` covers
 * everything, including connecting. -1: no time-out; when the dispatcher ends, so does this process.
 */
char *control_request(Control *control, const Buffer *request, Buffer *reply, int timeout_ms);

/* Send a message that has no answer. */
void control_send(Control *control, const Buffer *message);

/* Find a key's value in a reply. Returns false if it has none. */
bool reply_get(const Buffer *reply, const char *key, Reader *value);
bool reply_is(const Buffer *reply, const char *type);
/* Returns a copy of a text value for free(), NULL if there is none. */
char *reply_text(const Buffer *reply, const char *key);

/* Begin a message with this many fields besides its type. */
void message_begin(Buffer *buffer, const char *type, uint32_t fields);
void message_put_text(Buffer *buffer, const char *key, const char *value);
void message_put_int(Buffer *buffer, const char *key, int64_t value);
void message_put_bool(Buffer *buffer, const char *key, bool value);

#endif
