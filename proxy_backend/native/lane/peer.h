/* The worker's own memory, from which large outputs are read where they lie: process_vm_readv(2). That saves the worker's
 * copy into shared memory. It takes the same user, and neither a security module nor a filter of system calls that forbids it.
 */
#ifndef PYTRITON_PEER_H
#define PYTRITON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    bool asked; /* the kernel has been asked whether it may be read, once for each lane */
    bool readable;
    pid_t pid;
    int pidfd;
} Peer;

typedef enum {
    PEER_READ,
    PEER_LOST, /* it ended meanwhile: what was read is not to be used */
    PEER_UNREADABLE, /* there is no such memory, or none that can be read */
} PeerState;

/* Ask the kernel whether the process at the other end of a connection, which has just answered, may be read. */
void peer_ask(Peer *peer, int connection);
/* Read `size` bytes at `address` of the process. */
PeerState peer_read(const Peer *peer, int connection, void *to, uint64_t address, size_t size);
void peer_forget(Peer *peer);

#endif
