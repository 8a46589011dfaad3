/* Memory for outputs, to which the core and the models write. */
#ifndef PYTRITON_FRONTEND_CALLS_OUTPUTS_H
#define PYTRITON_FRONTEND_CALLS_OUTPUTS_H

#include "core/server.h"

/* The output memory of one call: a block that it keeps, and separate pieces for outputs that do not fit into the
 * block.
 */
typedef struct {
    char *block;
    size_t room, used;
    size_t wanted;  /* size that would have fitted all outputs at the same time */
    unsigned live;  /* pieces of the block that are in use */
    uint64_t bytes; /* bytes in use, inside and outside the block */
} OutputMemory;

/* Create the allocator that all calls use. The server owns it. */
bool outputs_prepare(Server *server, Problem *problem);
/* Free memory beyond `kept` bytes. No output may be in use. */
void outputs_reset(OutputMemory *memory, size_t kept);
/* Returns whether an output of the core is in a client's region of shared memory. */
bool outputs_in_region(const void *buffer_userp);

#endif
