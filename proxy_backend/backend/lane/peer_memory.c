#define _GNU_SOURCE
#include "lane/peer_memory.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* How long to wait for a process to end: one that is being killed loses its memory before it counts as ended. */
enum { EXIT_WAIT_MS = 200 };

/* Returns whether the process that opened the connection still exists and runs the same program. Its pid could have
 * been reused; exec closes the connection.
 */
static bool is_alive(const PeerMemory *peer, int connection, int wait_ms)
{
    struct pollfd end = {.fd = peer->pidfd, .events = POLLIN};
    char byte;
    if (poll(&end, 1, wait_ms) > 0)
        return false;
    ssize_t size = recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

void peer_memory_probe(PeerMemory *peer, int connection)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    char byte;
    struct iovec here = {&byte, 1}, nowhere = {NULL, 1};
    peer->was_probed = true;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0)
        return;
    peer->pid = credentials.pid;
    peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    if (peer->pidfd < 0)
        return;
    /* Address 0 is never mapped, so EFAULT means that reading is permitted, and EPERM that it is not. */
    ssize_t size = process_vm_readv(peer->pid, &here, 1, &nowhere, 1, 0);
    peer->readable = (size == 1 || (size < 0 && errno == EFAULT)) && is_alive(peer, connection, 0);
    if (!peer->readable)
        close(peer->pidfd);
}

PeerReadResult peer_memory_read(const PeerMemory *peer, int connection, void *to, uint64_t address, size_t size)
{
    size_t done = 0;
    while (done < size) {
        struct iovec here = {(char *)to + done, size - done}, there = {(char *)(uintptr_t)address + done, size - done};
        ssize_t more = process_vm_readv(peer->pid, &here, 1, &there, 1, 0);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return is_alive(peer, connection, EXIT_WAIT_MS) ? PEER_UNREADABLE : PEER_LOST;
        done += (size_t)more;
    }
    return is_alive(peer, connection, 0) ? PEER_READ : PEER_LOST;
}

void peer_memory_close(PeerMemory *peer)
{
    if (peer->readable)
        close(peer->pidfd);
    *peer = (PeerMemory){0};
}
