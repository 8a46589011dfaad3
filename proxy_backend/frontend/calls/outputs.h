/* The memory of outputs, to which the core, and so a model, writes the values. */
#ifndef PYTRITON_FRONTEND_CALLS_OUTPUTS_H
#define PYTRITON_FRONTEND_CALLS_OUTPUTS_H

#include "core/server.h"

/* Of one call: a block that stays with it, and separate pieces for what does not fit. */
typedef struct {
    char *block;
    size_t room, used;
    size_t wanted;  /* the size that all simultaneous outputs would have needed */
    unsigned live;  /* pieces of the block in use */
    uint64_t bytes; /* in use, in the block or not */
} OutputMemory;

/* Create the allocator of all calls, which the server keeps. */
bool outputs_prepare(Server *server, Problem *problem);
/* Keep at most this many bytes for reuse. Nothing may be in use. */
void outputs_reset(OutputMemory *memory, size_t kept);
/* Returns whether a buffer of an answer that the core attributes to us is a region's. */
bool outputs_in_region(const void *buffer_userp);

#endif
