/* Reads large outputs directly from the worker's own memory (process_vm_readv(2)), which saves the worker's copy to
 * shared memory. Requires the same user, and no security module or system call filter that forbids it.
 */
#ifndef PYTRITON_PEER_H
#define PYTRITON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    bool asked; /* the kernel was asked whether reading is permitted, once per lane */
    bool readable;
    pid_t pid;
    int pidfd;
} Peer;

typedef enum {
    PEER_READ,
    PEER_LOST, /* the worker ended: discard what was read */
    PEER_UNREADABLE, /* no such memory, or it cannot be read */
} PeerState;

/* Check whether the memory of the process at the other end of a connection, which has just answered, may be read. */
void peer_ask(Peer *peer, int connection);
/* Read `size` bytes at `address` of the process. */
PeerState peer_read(const Peer *peer, int connection, void *to, uint64_t address, size_t size);
void peer_forget(Peer *peer);

#endif
