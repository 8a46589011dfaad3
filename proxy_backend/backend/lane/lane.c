#define _GNU_SOURCE
#include "lane/lane.h"

#include "base/strings.h"
#include "lane/memory.h"
#include "lane/call_connection.h"
#include "wire/protocol.h"
#include "wire/shapes.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <linux/sockios.h>
#include <unistd.h>

/* Maximum size of a message in the worker's arena. Normal workers need some hundred bytes per request. */
enum { MAX_SPILLED_BYTES = 1 << 28 };
/* How long to wait for an announced descriptor, which the worker sends right after the announcement. */
#ifndef DESCRIPTOR_TIMEOUT_MS
#define DESCRIPTOR_TIMEOUT_MS 20000
#endif

static LaneState set_fault(Lane *lane, const char *what)
{
    snprintf(lane->fault, sizeof lane->fault, "%s", what);
    return LANE_FAULT;
}

/* Returns the error for a failure on our side, where another worker would not help either. */
static char *connect_error(const char *why)
{
    return strdup_printf("cannot connect to a worker: %s", why);
}

Lane *lane_connect(const char *path, char **failure)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    Lane *lane = calloc(1, sizeof *lane);
    *failure = NULL;
    size_t size = strlen(path);
    if (lane == NULL || size >= sizeof address.sun_path) {
        *failure = connect_error(lane ? "the path of the worker's socket is too long" : "out of memory");
        free(lane);
        return NULL;
    }
    memcpy(address.sun_path, path, size + 1);
    lane->arena.fd = -1;
    lane->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (lane->fd < 0)
        *failure = connect_error(strerror(errno));
    if (lane->fd < 0 || connect(lane->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        lane_close(lane);
        return NULL;
    }
    return lane;
}

void lane_set_timeout(Lane *lane, double seconds)
{
    struct timeval timeout = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)(fmod(seconds, 1) * 1e6)};
    if (seconds > 0 && timeout.tv_sec == 0 && timeout.tv_usec == 0)
        timeout.tv_usec = 1; /* A time-out of 0 would mean none. */
    setsockopt(lane->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

bool lane_all_read(const Lane *lane)
{
    int left = 0;
    return ioctl(lane->fd, SIOCOUTQ, &left) == 0 && left == 0; /* unix(7) */
}

static LaneState send_packet(Lane *lane, const void *data, size_t size, int descriptor)
{
    if (packet_send(lane->fd, data, size, descriptor))
        return LANE_OK;
    lane->was_reset |= errno == ECONNRESET;
    if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN)
        return LANE_UNREAD;
    /* The socket has room for everything that can be in flight unless the worker has stopped reading. Do not wait. */
    if (errno == EAGAIN)
        return set_fault(lane, "the worker does not read from its socket");
    snprintf(lane->fault, sizeof lane->fault, "cannot send to the worker: %s", strerror(errno));
    return LANE_FAULT;
}

static LaneState announce_arena(Lane *lane)
{
    static const uint8_t announcement[] = "\x92\xa8"
                                          "Announce"; /* Includes the number, 0. */
    int fd = arena_open_readonly(&lane->arena);
    if (fd < 0)
        return set_fault(lane, "cannot send the lane's memory to the worker: no file descriptors are left");
    LaneState state = send_packet(lane, announcement, sizeof announcement, -1);
    if (state == LANE_OK)
        state = send_packet(lane, "", 1, fd);
    close(fd);
    lane->arena_announced = state == LANE_OK;
    return state;
}

LaneState lane_send(Lane *lane, const Buffer *message)
{
    Buffer spilled = {0};
    const Buffer *sent = message;
    if (message->failed)
        return set_fault(lane, "out of memory");
    if (message->size > INLINE_BYTES) {
        uint64_t offset = 0;
        char *failure = arena_allocate(&lane->arena, message->size, &offset);
        if (failure) {
            set_fault(lane, failure);
            free(failure);
            return LANE_FAULT;
        }
        memcpy(lane->arena.map + offset, message->data, message->size);
        msgpack_put_array(&spilled, SPILLED_SIZE);
        msgpack_put_string(&spilled, SPILLED_NAME);
        msgpack_put_uint(&spilled, offset);
        msgpack_put_uint(&spilled, message->size);
        sent = &spilled;
    }
    LaneState state = LANE_OK;
    if (!lane->arena_announced && lane->arena.size)
        state = announce_arena(lane);
    if (state == LANE_OK)
        state = sent->failed ? set_fault(lane, "out of memory") : send_packet(lane, sent->data, sent->size, -1);
    buffer_free(&spilled);
    return state;
}

static Memory *find_memory(Lane *lane, int64_t number)
{
    for (size_t i = 0; i < lane->memory_count; i++)
        if (lane->memories[i].number == number)
            return &lane->memories[i];
    return NULL;
}

/* Returns the state for a failed receive call. */
static LaneState receive_error(Lane *lane)
{
    if (errno == EAGAIN)
        return LANE_TIMEOUT;
    if (errno == ECONNRESET)
        return LANE_UNREAD;
    snprintf(lane->fault, sizeof lane->fault, "cannot receive from the worker: %s", strerror(errno));
    return LANE_FAULT;
}

/* Returns the packet's only descriptor, or -1 if there is not exactly one or none is `wanted`. Closes all others: with
 * padding, there is room for two where one is expected.
 */
static int only_descriptor(struct msghdr *message, bool wanted)
{
    int only = -1, count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = header->cmsg_len - CMSG_LEN(0);
        for (size_t i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i, sizeof fd);
            if (wanted && count++ == 0) {
                only = fd;
                continue;
            }
            close(fd);
        }
    }
    if (count > 1)
        close(only);
    return count == 1 ? only : -1;
}

/* Receive the packet with the descriptor that was announced. */
static LaneState receive_descriptor(Lane *lane)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } rights;
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights.room};
    /* Use a short time-out instead of the batch's: a faulty worker that never sends the descriptor would block us for
     * so long.
     */
    struct pollfd next = {.fd = lane->fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&next, 1, DESCRIPTOR_TIMEOUT_MS);
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return set_fault(lane, "the worker announced memory, but did not send its descriptor");
    ssize_t size;
    do
        size = recvmsg(lane->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return receive_error(lane);
    int fd = only_descriptor(&message, size > 0 && !(message.msg_flags & MSG_CTRUNC));
    if (size == 0)
        return LANE_CLOSED;
    if (fd < 0 && message.msg_flags & MSG_CTRUNC)
        return set_fault(lane, "cannot receive the worker's memory: no file descriptors are left, or it sent several");
    if (fd < 0)
        return set_fault(lane, "the worker announced memory, but did not send a descriptor");
    Memory *memories = find_memory(lane, lane->announced_number) || lane->memory_count == MAX_LANE_MEMORIES
        ? NULL
        : realloc(lane->memories, (lane->memory_count + 1) * sizeof *memories);
    if (memories == NULL) {
        close(fd);
        return set_fault(lane, "the worker announced a memory segment twice, or too many of them");
    }
    lane->memories = memories;
    memories[lane->memory_count].number = lane->announced_number;
    if (!mapped_open(&memories[lane->memory_count].memory, fd))
        return set_fault(lane, "the worker sent memory that it can still shrink");
    lane->memory_count++;
    lane->announced = false;
    return LANE_OK;
}

/* Handle a message about memory. Returns LANE_TIMEOUT if the message was one, so that the caller receives the next. */
static LaneState handle_memory_message(Lane *lane, Reader *message, bool inlined)
{
    Reader reader = *message;
    ShapeError shape_error;
    if (!message_is_valid(*message, lane_messages, &shape_error)) {
        snprintf(lane->fault, sizeof lane->fault, "the worker sent %s", shape_error.text);
        return LANE_FAULT;
    }
    msgpack_get_array(&reader);
    Slice tag = msgpack_get_text(&reader);
    if (slice_is(tag, ANNOUNCE_NAME) && inlined) {
        lane->announced_number = msgpack_get_int(&reader);
        lane->announced = !reader.malformed;
        return lane->announced ? LANE_TIMEOUT : set_fault(lane, "malformed announcement");
    }
    if (slice_is(tag, SPILLED_NAME) || slice_is(tag, ANNOUNCE_NAME)) {
        int64_t offset = msgpack_get_int(&reader), size = msgpack_get_int(&reader);
        if (!inlined || reader.malformed || size <= 0 || size > MAX_SPILLED_BYTES)
            return set_fault(lane, "malformed reference to a message");
        const uint8_t *start = lane_memory(lane, ARENA_MEMORY, offset, size);
        if (start == NULL)
            return LANE_FAULT;
        /* Copy the message: the worker could change it while it is read, and mapping more of the worker's memory can
         * move it.
         */
        buffer_clear(&lane->spilled);
        buffer_put(&lane->spilled, start, (size_t)size);
        if (lane->spilled.failed)
            return set_fault(lane, "out of memory");
        *message = msgpack_read(lane->spilled.data, lane->spilled.size);
        return handle_memory_message(lane, message, false);
    }
    return LANE_OK;
}

static ssize_t receive_packet(Lane *lane)
{
    ssize_t size;
    if (lane->spins)
        return spin_receive(&lane->spin, lane->fd, lane->packet, sizeof lane->packet);
    do
        size = recv(lane->fd, lane->packet, sizeof lane->packet, 0);
    while (size < 0 && errno == EINTR);
    return size;
}

LaneState lane_receive(Lane *lane, Reader *message)
{
    for (;;) {
        if (lane->announced) {
            LaneState state = receive_descriptor(lane);
            if (state != LANE_OK)
                return state;
        }
        ssize_t size = receive_packet(lane);
        if (size < 0)
            return receive_error(lane);
        if (size == 0)
            return LANE_CLOSED;
        if (size > INLINE_BYTES)
            return set_fault(lane, "a lane message was longer than the protocol allows");
        *message = msgpack_read(lane->packet, (size_t)size);
        LaneState state = handle_memory_message(lane, message, true);
        if (state != LANE_TIMEOUT)
            return state;
    }
}

const uint8_t *lane_memory(Lane *lane, int64_t number, int64_t offset, int64_t size)
{
    Memory *memory = find_memory(lane, number);
    const uint8_t *bytes = memory ? mapped_bytes(&memory->memory, offset, size) : NULL;
    if (bytes == NULL)
        snprintf(lane->fault, sizeof lane->fault,
            memory ? "the worker refers to bytes %ld to %ld+%ld of a smaller memory segment"
                   : "the worker refers to memory segment %ld, which it never announced (%ld, %ld)",
            memory ? (long)offset : (long)number, (long)offset, (long)size);
    else if (number == ARENA_MEMORY) {
        lane->reached = offset + size;
        lane->uncredited_bytes += size;
    }
    return bytes;
}

void lane_probe_peer(Lane *lane)
{
    if (!lane->peer.was_probed)
        peer_memory_probe(&lane->peer, lane->fd);
}

bool lane_read_peer(Lane *lane, const char *output, void *to, int64_t address, int64_t size)
{
    PeerReadResult state = peer_memory_read(&lane->peer, lane->fd, to, (uint64_t)address, (size_t)size);
    lane->worker_lost |= state == PEER_LOST;
    if (state == PEER_UNREADABLE)
        snprintf(lane->fault, sizeof lane->fault, "the memory of the worker's output %.60s cannot be read", output);
    return state == PEER_READ;
}

void lane_put_credit(Buffer *message, int64_t parts)
{
    msgpack_put_array(message, CREDIT_SIZE);
    msgpack_put_string(message, CREDIT_NAME);
    msgpack_put_int(message, parts);
}

void lane_credit_lent(Lane *lane)
{
    Buffer message = {0};
    if (!lane->owes_credit)
        return;
    lane->owes_credit = false;
    lane_put_credit(&message, 1);
    lane_send(lane, &message);
    buffer_free(&message);
}

void lane_shutdown(Lane *lane)
{
    shutdown(lane->fd, SHUT_RDWR);
}

void lane_close(Lane *lane)
{
    if (lane == NULL)
        return;
    if (lane->fd >= 0)
        close(lane->fd);
    peer_memory_close(&lane->peer);
    arena_trim_cancel(&lane->arena);
    arena_close(&lane->arena);
    buffer_free(&lane->spilled);
    buffer_free(&lane->serialized);
    for (size_t i = 0; i < lane->memory_count; i++)
        mapped_close(&lane->memories[i].memory);
    free(lane->memories);
    free(lane);
}
