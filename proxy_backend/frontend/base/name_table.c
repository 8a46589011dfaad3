/* Open addressing with linear probing. When an entry is removed, later ones are moved to close the gap. */
#include "base/name_table.h"

#include "base/siphash.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

struct NameTableEntry {
    char *name; /* NULL if the entry is free */
    size_t size;
    uint64_t hash;
    void *value;
};

enum { FIRST_ROOM = 16 };

static uint64_t key[2];
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    /* Fails only on kernels older than 3.17. Then use addresses, which are randomised. */
    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key) {
        key[0] = (uint64_t)(uintptr_t)&key;
        key[1] = (uint64_t)(uintptr_t)malloc;
    }
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

uint64_t name_table_hash(Slice name)
{
    pthread_once(&key_once, make_key);
    uint64_t v[4];
    sip_init(v, key);
    size_t at = 0;
    uint64_t word;
    for (; name.size - at >= sizeof word; at += sizeof word) {
        memcpy(&word, name.start + at, sizeof word);
        sip_word(v, word);
    }
    word = (uint64_t)name.size << 56;
    for (size_t i = 0; at + i < name.size; i++)
        word |= (uint64_t)(unsigned char)name.start[at + i] << (8 * i);
    sip_word(v, word);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Returns the entry of a name, or the free entry where it belongs. At least one entry must be free. */
static NameTableEntry *find_slot(NameTableEntry *entries, size_t room, uint64_t hash, Slice name)
{
    for (size_t at = hash & (room - 1);; at = (at + 1) & (room - 1)) {
        NameTableEntry *entry = &entries[at];
        if (entry->name == NULL || (entry->hash == hash && slice_equals((Slice){entry->name, entry->size}, name)))
            return entry;
    }
}

static NameTableEntry *find_entry(const NameTable *names, Slice name)
{
    if (names->count == 0)
        return NULL;
    NameTableEntry *entry = find_slot(names->entries, names->room, name_table_hash(name), name);
    return entry->name ? entry : NULL;
}

/* Grow the table if more than three quarters would be used. Returns false without memory. */
static bool has_room(NameTable *names)
{
    if (names->count < names->room / 4 * 3)
        return true;
    size_t room = names->room ? names->room * 2 : FIRST_ROOM;
    NameTableEntry *entries = calloc(room, sizeof *entries);
    if (entries == NULL)
        return false;
    for (size_t i = 0; i < names->room; i++) {
        const NameTableEntry *old = &names->entries[i];
        if (old->name)
            *find_slot(entries, room, old->hash, (Slice){old->name, old->size}) = *old;
    }
    free(names->entries);
    names->entries = entries;
    names->room = room;
    return true;
}

void name_table_free(NameTable *names)
{
    for (size_t i = 0; i < names->room; i++)
        free(names->entries[i].name);
    free(names->entries);
    *names = (NameTable){0};
}

void *name_table_get(const NameTable *names, Slice name)
{
    const NameTableEntry *entry = find_entry(names, name);
    return entry ? entry->value : NULL;
}

bool name_table_put(NameTable *names, Slice name, void *value)
{
    NameTableEntry *entry = find_entry(names, name);
    if (entry) {
        entry->value = value;
        return true;
    }
    char *copy = slice_copy(name);
    if (copy == NULL || !has_room(names)) {
        free(copy);
        return false;
    }
    uint64_t hash = name_table_hash(name);
    *find_slot(names->entries, names->room, hash, name) = (NameTableEntry){copy, name.size, hash, value};
    names->count++;
    return true;
}

void *name_table_remove(NameTable *names, Slice name)
{
    NameTableEntry *entry = find_entry(names, name);
    if (entry == NULL)
        return NULL;
    void *value = entry->value;
    free(entry->name);
    names->count--;
    size_t mask = names->room - 1, hole = (size_t)(entry - names->entries);
    for (size_t at = (hole + 1) & mask; names->entries[at].name; at = (at + 1) & mask) {
        size_t home = names->entries[at].hash & mask;
        /* The entry may move to the gap unless its home position is behind the gap. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            names->entries[hole] = names->entries[at];
            hole = at;
        }
    }
    names->entries[hole] = (NameTableEntry){0};
    return value;
}

bool name_table_next(const NameTable *names, size_t *position, Slice *name, void **value)
{
    while (*position < names->room) {
        const NameTableEntry *entry = &names->entries[(*position)++];
        if (entry->name == NULL)
            continue;
        *name = (Slice){entry->name, entry->size};
        *value = entry->value;
        return true;
    }
    return false;
}
