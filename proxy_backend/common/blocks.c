#include "common/blocks.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

enum { ALIGNED = 64 };

typedef struct {
    void *start;
    size_t size;
    bool was_idle; /* it was also free at the previous blocks_trim */
} FreeBlock;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static FreeBlock free_blocks[BLOCKS_MAX_COUNT];
static size_t count, bytes;
static bool cache_enabled;

/* Remove a block from the cache. The caller holds the lock. */
static void *take_out(size_t at)
{
    void *start = free_blocks[at].start;
    bytes -= free_blocks[at].size;
    free_blocks[at] = free_blocks[--count];
    return start;
}

/* Take the smallest cached block with enough room, unless more than half of it would be unused. Returns NULL if there
 * is none.
 */
static void *take_free(size_t size)
{
    void *found = NULL;
    pthread_mutex_lock(&lock);
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (free_blocks[i].size >= size && free_blocks[i].size / 2 <= size &&
            (best == count || free_blocks[i].size < free_blocks[best].size))
            best = i;
    if (best < count)
        found = take_out(best);
    pthread_mutex_unlock(&lock);
    return found;
}

void *block_allocate(size_t size)
{
    void *block = size < BLOCK_MIN_BYTES ? NULL : take_free(size);
    return block || posix_memalign(&block, ALIGNED, size) == 0 ? block : NULL;
}

void block_release(void *block)
{
    size_t size = block ? malloc_usable_size(block) : 0;
    bool stays = false;
    if (size >= BLOCK_MIN_BYTES && ((size_t)(void *)block) % ALIGNED == 0) {
        pthread_mutex_lock(&lock);
        stays = cache_enabled && count < BLOCKS_MAX_COUNT && size <= BLOCKS_MAX_BYTES - bytes;
        if (stays) {
            free_blocks[count++] = (FreeBlock){block, size, false};
            bytes += size;
        }
        pthread_mutex_unlock(&lock);
    }
    if (!stays)
        free(block);
}

void blocks_enable_cache(void)
{
    pthread_mutex_lock(&lock);
    cache_enabled = true;
    pthread_mutex_unlock(&lock);
}

bool blocks_trim(void)
{
    void *idle[BLOCKS_MAX_COUNT];
    size_t idle_count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = count; i-- > 0;)
        if (free_blocks[i].was_idle)
            idle[idle_count++] = take_out(i);
        else
            free_blocks[i].was_idle = true;
    bool left = count > 0;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < idle_count; i++)
        free(idle[i]);
    return left;
}
