/* The worker's message for a call to another model. */
#ifndef PYTRITON_CALL_MESSAGE_H
#define PYTRITON_CALL_MESSAGE_H

#include "wire/msgpack.h"

enum { MOST_DIMS = 64 };

/* A Call of pytriton/_protocol/calls/call_messages.py. Its texts lie in the message. */
typedef struct {
    int64_t id, version;
    Text model;
    Reader inputs, outputs; /* each begins with the array */
    Text parameters, request_id;
    Text correlation; /* `start` NULL: it is the number */
    uint64_t correlation_number, flags, timeout_us;
    bool stream;
    Reader chain;
} CallMessage;

/* An input as the worker describes it. */
typedef struct {
    Text name, datatype;
    int64_t shape[MOST_DIMS];
    uint32_t dims; /* may be more than MOST_DIMS: then it is to be refused */
    int64_t memory, offset, size;
} Input;

/* Read what follows the tag of a message that has the declared shape. False: one of its numbers is too large. */
bool call_read(Reader *reader, uint32_t fields, CallMessage *call);
/* Read one of its inputs. */
void get_input(Reader *reader, Input *input);

/* Visit the links of a chain: the model and the worker of each. False: there are no more. */
typedef struct {
    Reader reader;
    uint32_t left;
    Text model, worker;
} Links;
Links chain_links(const CallMessage *call);
bool chain_next(Links *links);

#endif
