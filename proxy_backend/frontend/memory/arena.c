#include "memory/arena.h"

#include <stdint.h>
#include <stdlib.h>

enum { ALIGNED = 64, MIN_BLOCK_BYTES = 4096 };

struct ArenaBlock {
    ArenaBlock *next;
    size_t room, used;
};

/* Size of a block's header. */
enum { HEAD = (sizeof(ArenaBlock) + ALIGNED - 1) / ALIGNED * ALIGNED };

static ArenaBlock *block_new(size_t room, ArenaBlock *next)
{
    size_t size;
    void *memory;
    if (__builtin_add_overflow(room, (size_t)HEAD, &size) || posix_memalign(&memory, ALIGNED, size) != 0)
        return NULL;
    ArenaBlock *block = memory;
    *block = (ArenaBlock){next, room, 0};
    return block;
}

void *arena_allocate(Arena *arena, size_t size)
{
    size_t rounded;
    if (__builtin_add_overflow(size, (size_t)(ALIGNED - 1), &rounded))
        return NULL;
    rounded -= rounded % ALIGNED;
    ArenaBlock *block = arena->blocks;
    if (block == NULL || block->room - block->used < rounded) {
        /* Double the size, so that a thousand small allocations need few blocks. */
        size_t room = block && block->room < SIZE_MAX / 4 ? block->room * 2 : MIN_BLOCK_BYTES;
        if (room > (size_t)1 << 20)
            room = (size_t)1 << 20;
        block = block_new(rounded > room ? rounded : room, arena->blocks);
        if (block == NULL)
            return NULL;
        arena->blocks = block;
    }
    char *taken = (char *)block + HEAD + block->used;
    block->used += rounded;
    return taken;
}

void arena_free(Arena *arena)
{
    for (ArenaBlock *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->blocks = NULL;
}

void arena_reset(Arena *arena, size_t kept)
{
    size_t used = 0;
    for (const ArenaBlock *block = arena->blocks; block; block = block->next)
        used += block->used;
    ArenaBlock *first = arena->blocks;
    if (first && first->next == NULL && first->room <= kept) {
        first->used = 0;
        return;
    }
    arena_free(arena);
    if (used && used <= kept)
        arena->blocks = block_new(used < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : used, NULL);
}
