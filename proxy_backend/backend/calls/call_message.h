/* The message with which a worker calls another model. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_MESSAGE_H
#define PYTRITON_BACKEND_CALLS_CALL_MESSAGE_H

#include "wire/msgpack.h"

enum { MAX_DIMS = 64 };

/* A decoded Call of pytriton/_protocol/calls/call_messages.py. Its slices point into the message. */
typedef struct {
    int64_t id, version;
    Slice model;
    Reader inputs, outputs; /* each is positioned at its array's header */
    Slice parameters, request_id;
    Slice correlation; /* `start` is NULL if the correlation id is a number */
    uint64_t correlation_number, flags, timeout_us;
    bool stream;
    Reader chain;
} CallMessage;

/* An input as the worker describes it. */
typedef struct {
    Slice name, datatype;
    int64_t shape[MAX_DIMS];
    uint32_t dims; /* at most MAX_DIMS in a valid input */
    int64_t memory, offset, size;
} Input;

/* Read the fields after the tag of a message whose shape has been checked. Returns false if a number is too large. */
bool call_message_read(Reader *reader, uint32_t fields, CallMessage *call);
/* Read the next input of a call. */
void call_message_get_input(Reader *reader, Input *input);

/* Iterates over the links of a chain: a model and a worker each. chain_next returns false at the end. */
typedef struct {
    Reader reader;
    uint32_t left;
    Slice model, worker;
} Links;
Links chain_links(const CallMessage *call);
bool chain_next(Links *links);

#endif
