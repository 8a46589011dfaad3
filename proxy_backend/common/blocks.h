/* Large memory blocks, with a cache of released ones. Any thread.
 *
 * In the native frontend, malloc returns large blocks to the system immediately (thread_pool/memory_trim.c), and the
 * kernel would have to clear the pages of the next one: 1,500 for 6 MB. So the frontend enables a cache of the blocks
 * that bodies and outputs release, of up to BLOCKS_MAX_BYTES bytes. The compiled proxy does not use the cache.
 */
#ifndef PYTRITON_COMMON_BLOCKS_H
#define PYTRITON_COMMON_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BLOCK_MIN_BYTES = 128 << 10, /* smaller ones always use malloc */
    BLOCKS_MAX_BYTES = 128 << 20,
    BLOCKS_MAX_COUNT = 64
};

/* Allocate a block aligned for any tensor. realloc and free accept it, too. Returns NULL without memory. */
void *block_allocate(size_t size);
/* Release memory of block_allocate or malloc; NULL is allowed. */
void block_release(void *block);
/* Keep released blocks for reuse from now on. The caller has to call blocks_trim regularly. */
void blocks_enable_cache(void);
/* Free the cached blocks that have not been used since the previous call. Returns whether the cache has others. */
bool blocks_trim(void);

#endif
