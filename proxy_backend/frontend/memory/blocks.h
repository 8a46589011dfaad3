/* Large memory blocks that are needed repeatedly: bodies and outputs. Any thread.
 *
 * malloc returns large blocks to the system immediately (thread_pool/memory_trim.c configures it so), and the next block
 * has fresh pages, which the kernel clears one by one: 1,500 for 6 MB. So blocks that are released here are kept for
 * a while, up to BLOCKS_MAX_BYTES bytes.
 */
#ifndef PYTRITON_FRONTEND_MEMORY_BLOCKS_H
#define PYTRITON_FRONTEND_MEMORY_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BLOCK_MIN_BYTES = 128 << 10, /* smaller ones always use malloc */
    BLOCKS_MAX_BYTES = 128 << 20,
    BLOCKS_MAX_COUNT = 64 /* kept at most */
};

/* Allocate, aligned for any tensor; realloc and free accept it as well. NULL without memory. */
void *block_allocate(size_t size);
/* Release memory of block_allocate or malloc; NULL is allowed. */
void block_release(void *block);
/* Free those that have not been used since the last call. Returns whether some are left. */
bool blocks_trim(void);

#endif
