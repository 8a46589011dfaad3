/* The worker's message that calls another model. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_MESSAGE_H
#define PYTRITON_BACKEND_CALLS_CALL_MESSAGE_H

#include "wire/msgpack.h"

enum { MAX_DIMS = 64 };

/* A Call of pytriton/_protocol/calls/call_messages.py. Its texts point into the message. */
typedef struct {
    int64_t id, version;
    Slice model;
    Reader inputs, outputs; /* each begins with the array header */
    Slice parameters, request_id;
    Slice correlation; /* `start` NULL: it is the number */
    uint64_t correlation_number, flags, timeout_us;
    bool stream;
    Reader chain;
} CallMessage;

/* An input as the worker describes it. */
typedef struct {
    Slice name, datatype;
    int64_t shape[MAX_DIMS];
    uint32_t dims; /* may exceed MAX_DIMS: then the input must be refused */
    int64_t memory, offset, size;
} Input;

/* Read the fields after the tag of a message whose shape was checked. Returns false if one of its numbers is too
 * large.
 */
bool call_message_read(Reader *reader, uint32_t fields, CallMessage *call);
/* Read one of its inputs. */
void call_message_get_input(Reader *reader, Input *input);

/* Iterate over a chain's links: the model and the worker of each. Returns false at the end. */
typedef struct {
    Reader reader;
    uint32_t left;
    Slice model, worker;
} Links;
Links chain_links(const CallMessage *call);
bool chain_next(Links *links);

#endif
