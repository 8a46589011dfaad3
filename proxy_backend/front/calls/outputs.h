/* The memory of outputs: where the core, and so a model, puts the values that are answered. */
#ifndef PYTRITON_FRONT_OUTPUTS_H
#define PYTRITON_FRONT_OUTPUTS_H

#include "core/server.h"

/* Of one call: a block that stays with it, and single pieces for what does not fit. */
typedef struct {
    char *block;
    size_t room, used;
    size_t wanted;  /* the room that all outputs at a time would have needed */
    unsigned live;  /* pieces of the block that are in use */
    uint64_t bytes; /* that are in use, in the block or not */
} OutputMemory;

/* Make the allocator of all calls, which lies in the server. */
bool outputs_prepare(Server *server, Problem *problem);
/* Keep at most so many bytes for the next use. Nothing is in use. */
void outputs_reset(OutputMemory *memory, size_t kept);
/* Whether a buffer of an answer, which the core says was ours, is a region's. */
bool outputs_in_region(const void *buffer_userp);

#endif
