/* The asking end of the dispatcher's control socket: see pytriton/_protocol/control.py for the frames and messages. */
#ifndef PYTRITON_CONTROL_H
#define PYTRITON_CONTROL_H

#include "wire/msgpack.h"

/* A connection. It asks the questions of several threads one after the other. */
typedef struct Control Control;

/* `endpoint`: "ipc:///path", or "ipc://@name" for an abstract one. It connects with the first question. */
Control *control_new(const char *endpoint);
void control_free(Control *control);

/* Ask, wait for the answer and return it in `reply`, for buffer_free: a map in MessagePack.
 *
 * Returns NULL, or why there is no answer, for free(): the dispatcher's own words, or what went wrong on the way.
 * `timeout_ms`: of all of that, connecting included. -1: wait for as long as it takes; when the dispatcher ends, this
 * process does.
 */
char *control_ask(Control *control, const Buffer *question, Buffer *reply, int timeout_ms);

/* Send a message that has no answer. */
void control_tell(Control *control, const Buffer *message);

/* Find a key's value in a reply. False: it has none. */
bool reply_find(const Buffer *reply, const char *key, Reader *value);
bool reply_is(const Buffer *reply, const char *type);
/* A copy of a text value for free(), NULL if there is none. */
char *reply_text(const Buffer *reply, const char *key);

/* Begin a message that has so many fields besides its type. */
void put_message(Buffer *buffer, const char *type, uint32_t fields);
void put_text_field(Buffer *buffer, const char *key, const char *value);
void put_int_field(Buffer *buffer, const char *key, int64_t value);
void put_bool_field(Buffer *buffer, const char *key, bool value);

#endif
