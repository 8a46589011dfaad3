#include "memory/blocks.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

enum { ALIGNED = 64 };

typedef struct {
    void *start;
    size_t size;
    bool rested; /* it was free at the last blocks_drop */
} Kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static Kept kept[BLOCKS_MOST];
static size_t count, bytes;

/* With the lock held. */
static void *take_out(size_t at)
{
    void *start = kept[at].start;
    bytes -= kept[at].size;
    kept[at] = kept[--count];
    return start;
}

/* Take the smallest one with enough room, unless more than half of it would be unused. */
static void *take_kept(size_t size)
{
    void *found = NULL;
    pthread_mutex_lock(&lock);
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (kept[i].size >= size && kept[i].size / 2 <= size && (best == count || kept[i].size < kept[best].size))
            best = i;
    if (best < count)
        found = take_out(best);
    pthread_mutex_unlock(&lock);
    return found;
}

void *block_take(size_t size)
{
    void *block = size < BLOCK_LEAST ? NULL : take_kept(size);
    return block || posix_memalign(&block, ALIGNED, size) == 0 ? block : NULL;
}

void block_give(void *block)
{
    size_t size = block ? malloc_usable_size(block) : 0;
    bool stays = false;
    if (size >= BLOCK_LEAST && ((size_t)(void *)block) % ALIGNED == 0) {
        pthread_mutex_lock(&lock);
        stays = count < BLOCKS_MOST && size <= BLOCKS_KEPT - bytes;
        if (stays) {
            kept[count++] = (Kept){block, size, false};
            bytes += size;
        }
        pthread_mutex_unlock(&lock);
    }
    if (!stays)
        free(block);
}

bool blocks_drop(void)
{
    void *idle[BLOCKS_MOST];
    size_t idle_count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = count; i-- > 0;)
        if (kept[i].rested)
            idle[idle_count++] = take_out(i);
        else
            kept[i].rested = true;
    bool left = count > 0;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < idle_count; i++)
        free(idle[i]);
    return left;
}
