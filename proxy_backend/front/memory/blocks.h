/* Large blocks of memory that are needed again and again: bodies and outputs. Any thread.
 *
 * malloc gives large blocks back to the system at once (background/memory.c has it keep little), and the next one has fresh pages, which the
 * kernel clears one by one: 1,500 for 6 MB. So blocks that are given back here stay for a while, as many as BLOCKS_KEPT bytes allow.
 */
#ifndef PYTRITON_FRONT_BLOCKS_H
#define PYTRITON_FRONT_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BLOCK_LEAST = 128 << 10, /* smaller ones are malloc's alone */
    BLOCKS_KEPT = 128 << 20,
    BLOCKS_MOST = 64 /* that are kept */
};

/* Aligned for anything that a tensor may hold; realloc and free take it as well. NULL: there is no memory. */
void *block_take(size_t size);
/* Give back what block_take or malloc gave; NULL is allowed. */
void block_give(void *block);
/* Free those that nobody has taken since the last time. True: some are left. */
bool blocks_drop(void);

#endif
