/* Reads large outputs directly from the worker's own memory (process_vm_readv(2)), which saves the worker's copy to
 * shared memory. Requires the same user, and no security module or system call filter that forbids it.
 */
#ifndef PYTRITON_BACKEND_LANE_PEER_MEMORY_H
#define PYTRITON_BACKEND_LANE_PEER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    bool was_probed; /* the kernel was asked whether reading is permitted, once per lane */
    bool readable;
    pid_t pid;
    int pidfd;
} PeerMemory;

typedef enum {
    PEER_READ,
    PEER_LOST, /* the worker ended: discard what was read */
    PEER_UNREADABLE, /* no such memory, or it cannot be read */
} PeerReadResult;

/* Check whether the memory of the process at the other end of a connection, which has just answered, may be read. */
void peer_memory_probe(PeerMemory *peer, int connection);
/* Read `size` bytes at `address` of the process. */
PeerReadResult peer_memory_read(const PeerMemory *peer, int connection, void *to, uint64_t address, size_t size);
void peer_memory_close(PeerMemory *peer);

#endif
