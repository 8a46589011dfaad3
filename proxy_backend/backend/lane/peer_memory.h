/* Reads large outputs directly from a worker's memory (process_vm_readv(2)), which saves the worker from copying them
 * to shared memory. Requires the same user, and no security module or system call filter that forbids it.
 */
#ifndef PYTRITON_BACKEND_LANE_PEER_MEMORY_H
#define PYTRITON_BACKEND_LANE_PEER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    bool was_probed; /* permission was checked (once per lane) */
    bool readable;
    pid_t pid;
    int pidfd;
} PeerMemory;

typedef enum {
    PEER_READ,
    PEER_LOST, /* the worker ended; what was read is invalid */
    PEER_UNREADABLE, /* there is no such memory, or it cannot be read */
} PeerReadResult;

/* Check whether the memory of the process at the other end of a connection may be read. It must have just answered. */
void peer_memory_probe(PeerMemory *peer, int connection);
/* Copy `size` bytes from `address` in that process. */
PeerReadResult peer_memory_read(const PeerMemory *peer, int connection, void *to, uint64_t address, size_t size);
void peer_memory_close(PeerMemory *peer);

#endif
