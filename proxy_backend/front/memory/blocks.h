/* Large memory blocks that are needed repeatedly: bodies and outputs. Any thread.
 *
 * malloc returns large blocks to the system immediately (background/memory.c configures it so), and the next block
 * has fresh pages, which the kernel clears one by one: 1,500 for 6 MB. So blocks that are released here are kept for
 * a while, up to BLOCKS_KEPT bytes.
 */
#ifndef PYTRITON_FRONT_BLOCKS_H
#define PYTRITON_FRONT_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BLOCK_LEAST = 128 << 10, /* smaller ones always use malloc */
    BLOCKS_KEPT = 128 << 20,
    BLOCKS_MOST = 64 /* kept at most */
};

/* Allocate, aligned for any tensor; realloc and free accept it as well. NULL without memory. */
void *block_take(size_t size);
/* Release memory of block_take or malloc; NULL is allowed. */
void block_give(void *block);
/* Free those that have not been used since the last call. Returns whether some are left. */
bool blocks_drop(void);

#endif
