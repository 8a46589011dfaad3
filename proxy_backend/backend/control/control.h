/* Client of the dispatcher's control socket. pytriton/_protocol/control.py describes the frames and messages. */
#ifndef PYTRITON_BACKEND_CONTROL_H
#define PYTRITON_BACKEND_CONTROL_H

#include "wire/msgpack.h"

/* A connection to the dispatcher. Threads may share it; their requests run one at a time. */
typedef struct Control Control;

/* Create a connection that is opened on the first request. `endpoint` is "ipc:///path", or "ipc://@name" for an
 * abstract socket. Returns NULL for an invalid one.
 */
Control *control_new(const char *endpoint);
void control_free(Control *control);

/* Send a request and receive the answer, a MessagePack map, in `reply` (free it with buffer_free). Returns NULL, or an
 * error for free(): the dispatcher's error, or a transport error. `timeout_ms` includes connecting. -1 means no limit,
 * since this process ends when the dispatcher does.
 */
char *control_request(Control *control, const Buffer *request, Buffer *reply, int timeout_ms);

/* Send a message that is not answered. */
void control_send(Control *control, const Buffer *message);

/* Find a key in a reply. Returns false if it is missing. */
bool reply_get(const Buffer *reply, const char *key, Reader *value);
bool reply_is(const Buffer *reply, const char *type);
/* Returns a copy of a text in a reply, for free(), or NULL if it is missing. */
char *reply_text(const Buffer *reply, const char *key);

/* Begin a message. `fields` is the number of its fields besides the type. */
void message_begin(Buffer *buffer, const char *type, uint32_t fields);
void message_put_text(Buffer *buffer, const char *key, const char *value);
void message_put_int(Buffer *buffer, const char *key, int64_t value);
void message_put_bool(Buffer *buffer, const char *key, bool value);

#endif
