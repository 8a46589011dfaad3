#define _GNU_SOURCE
#include "lane/call_connection.h"

#include "lane/memory.h"
#include "wire/protocol.h"
#include "wire/shapes.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SENDING = MSG_NOSIGNAL | MSG_DONTWAIT };

bool packet_send(int fd, const void *data, size_t size, int descriptor)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } rights = {0};
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = &rights;
        message.msg_controllen = sizeof rights.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    ssize_t sent;
    do
        sent = descriptor < 0 ? send(fd, data, size, SENDING) : sendmsg(fd, &message, SENDING);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

/* Maximum number of packets queued for a worker that does not read them. Beyond it, the worker's packets are not read
 * either. The limit exceeds the number of calls that a worker can have in flight: a worker that drops hundreds of
 * calls at once gets as many answers, and its reader thread reports all the drops before it reads on. With a lower
 * limit, the two ends could wait for each other forever.
 */
enum { MAX_QUEUED = 1 << 16, MAX_DESCRIPTORS = 4 };

/* A queued packet. */
typedef struct Packet {
    struct Packet *next;
    int descriptor; /* -1 if there is none */
    size_t size;
    uint8_t data[];
} Packet;

struct CallConnection {
    int fd, wake;
    pthread_mutex_t sending; /* guards the four fields below, and closing the connection's descriptor */
    Packet *first, *last;
    size_t queued;
    bool closed;
    int64_t announced;
    /* Only the receiving thread uses these. */
    Memory *memories;
    size_t memory_count;
    char fault[160];
    uint8_t packet[MAX_MESSAGE_BYTES + 1]; /* one byte larger than any valid packet, to detect truncation */
};

CallConnection *call_connection_open(const char *lane_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *slash = strrchr(lane_path, '/'), *dot = strrchr(lane_path, '.');
    size_t size = dot && dot > slash ? (size_t)(dot - lane_path) : strlen(lane_path);
    if (size + sizeof ".call" > sizeof address.sun_path)
        return NULL;
    memcpy(address.sun_path, lane_path, size);
    memcpy(address.sun_path + size, ".call", sizeof ".call");
    CallConnection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;
    pthread_mutex_init(&connection->sending, NULL);
    connection->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    connection->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Never wait for room in the worker's backlog: the worker has other proxies for its calls. */
    if (connection->wake < 0 || connection->fd < 0 ||
        connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        call_connection_close(connection);
        call_connection_free(connection);
        return NULL;
    }
    return connection;
}

void call_connection_free(CallConnection *connection)
{
    if (connection->wake >= 0)
        close(connection->wake);
    pthread_mutex_destroy(&connection->sending);
    free(connection);
}

/* ── sending ────────────────────────────────────────────────────────────────────────────────────── */

/* Send a packet. Returns 1 on success, 0 if there is no room now, -1 if the worker is gone. */
static int try_send(int fd, const void *data, size_t size, int descriptor)
{
    if (packet_send(fd, data, size, descriptor))
        return 1;
    /* ETOOMANYREFS means that too many descriptors are in flight, which passes like a lack of room. */
    return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? 0 : -1;
}

static void free_packet(Packet *packet)
{
    if (packet->descriptor >= 0)
        close(packet->descriptor);
    free(packet);
}

static void queue_packet(CallConnection *connection, const void *data, size_t size, int descriptor)
{
    Packet *packet = malloc(sizeof *packet + size);
    if (packet == NULL) { /* Close the connection: the worker could not make sense of the packets after a lost one. */
        shutdown(connection->fd, SHUT_RDWR);
        if (descriptor >= 0)
            close(descriptor);
        return;
    }
    *packet = (Packet){.descriptor = descriptor, .size = size};
    memcpy(packet->data, data, size);
    if (connection->last)
        connection->last->next = packet;
    else
        connection->first = packet;
    connection->last = packet;
    if (connection->queued++ == 0 && eventfd_write(connection->wake, 1) != 0)
        /* Shut down: without the wake-up, the receiving thread would never send the packet. */
        shutdown(connection->fd, SHUT_RDWR);
}

/* Send a packet, or queue it. Takes ownership of `descriptor`. The caller holds the lock `sending`. */
static void send_locked(CallConnection *connection, const void *data, size_t size, int descriptor)
{
    int sent = connection->closed ? -1 : connection->first ? 0 : try_send(connection->fd, data, size, descriptor);
    if (sent == 0)
        queue_packet(connection, data, size, descriptor);
    else if (descriptor >= 0)
        close(descriptor);
}

void call_connection_send(CallConnection *connection, const Buffer *message)
{
    pthread_mutex_lock(&connection->sending);
    if (!message->failed)
        send_locked(connection, message->data, message->size, -1);
    else if (!connection->closed)
        /* Without memory for the message, shut down: the worker would wait for it forever. */
        shutdown(connection->fd, SHUT_RDWR);
    pthread_mutex_unlock(&connection->sending);
}

int64_t call_connection_announce(CallConnection *connection, int descriptor)
{
    Buffer message = {0};
    pthread_mutex_lock(&connection->sending);
    int64_t number = ++connection->announced;
    msgpack_put_array(&message, MEMORY_SIZE);
    msgpack_put_string(&message, MEMORY_NAME);
    msgpack_put_int(&message, number);
    if (message.failed)
        close(descriptor);
    else
        send_locked(connection, message.data, message.size, descriptor);
    bool announced = !message.failed;
    pthread_mutex_unlock(&connection->sending);
    buffer_free(&message);
    return announced ? number : 0;
}

/* Send queued packets until the socket is full. */
static void flush(CallConnection *connection)
{
    pthread_mutex_lock(&connection->sending);
    while (connection->first) {
        Packet *packet = connection->first;
        if (try_send(connection->fd, packet->data, packet->size, packet->descriptor) == 0)
            break;
        connection->first = packet->next;
        connection->last = packet->next ? connection->last : NULL;
        connection->queued--;
        free_packet(packet);
    }
    pthread_mutex_unlock(&connection->sending);
}

static void shutdown_socket(CallConnection *connection, int how)
{
    pthread_mutex_lock(&connection->sending);
    if (!connection->closed)
        shutdown(connection->fd, how);
    pthread_mutex_unlock(&connection->sending);
}

void call_connection_shutdown_read(CallConnection *connection)
{
    shutdown_socket(connection, SHUT_RD);
}

void call_connection_shutdown(CallConnection *connection)
{
    shutdown_socket(connection, SHUT_RDWR);
}

/* ── receiving ──────────────────────────────────────────────────────────────────────────────────── */

static Received set_fault(CallConnection *connection, const char *what)
{
    snprintf(connection->fault, sizeof connection->fault, "%s", what);
    return RECEIVED_FAULT;
}

const char *call_connection_fault(const CallConnection *connection)
{
    return connection->fault;
}

static Memory *find_memory(CallConnection *connection, int64_t number)
{
    for (size_t i = 0; i < connection->memory_count; i++)
        if (connection->memories[i].number == number)
            return &connection->memories[i];
    return NULL;
}

/* Map memory that the worker has sent. Takes ownership of the descriptor. */
static Received map_memory(CallConnection *connection, int64_t number, int descriptor)
{
    Memory *memories = find_memory(connection, number) ? NULL
        : connection->memory_count == MAX_CALL_MEMORIES
        ? NULL
        : realloc(connection->memories, (connection->memory_count + 1) * sizeof *memories);
    if (memories == NULL) {
        close(descriptor);
        return set_fault(connection, "the worker announced a memory segment twice, or too many of them");
    }
    connection->memories = memories;
    memories[connection->memory_count].number = number;
    if (!mapped_open(&memories[connection->memory_count].memory, descriptor))
        return set_fault(connection, "the worker sent memory that it can still shrink");
    connection->memory_count++;
    return RECEIVED_NOTHING;
}

static Received unmap_memory(CallConnection *connection, int64_t number)
{
    Memory *memory = find_memory(connection, number);
    if (memory == NULL)
        return set_fault(connection, "the worker returned a memory segment that it never announced");
    mapped_close(&memory->memory);
    *memory = connection->memories[--connection->memory_count];
    return RECEIVED_NOTHING;
}

/* Receive one packet and its `*count` descriptors. Returns 0 if the worker is gone, -1 if there is no packet. */
static ssize_t receive_packet(CallConnection *connection, int descriptors[MAX_DESCRIPTORS], int *count, bool *cut)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } rights;
    struct iovec part = {.iov_base = connection->packet, .iov_len = sizeof connection->packet};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights.room};
    ssize_t size;
    *count = 0;
    do
        size = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return errno == EAGAIN ? -1 : 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = header->cmsg_len - CMSG_LEN(0);
        for (size_t i = 0; i + sizeof(int) <= bytes && *count < MAX_DESCRIPTORS; i += sizeof(int))
            memcpy(&descriptors[(*count)++], CMSG_DATA(header) + i, sizeof(int));
    }
    *cut = message.msg_flags & (MSG_CTRUNC | MSG_TRUNC) || size > MAX_MESSAGE_BYTES;
    return size;
}

static Received receive_message(CallConnection *connection, Reader *message)
{
    int descriptors[MAX_DESCRIPTORS], count;
    bool cut = false;
    ssize_t size = receive_packet(connection, descriptors, &count, &cut);
    if (size < 0)
        return RECEIVED_NOTHING;
    Reader reader = *message = msgpack_read(connection->packet, (size_t)size);
    ShapeError shape_error;
    bool fits = message_is_valid(reader, call_messages, &shape_error);
    msgpack_get_array(&reader);
    Slice tag = msgpack_get_text(&reader);
    bool memory = slice_is(tag, MEMORY_NAME), forget = slice_is(tag, FORGET_NAME);
    int64_t number = memory || forget ? msgpack_get_int(&reader) : 0;
    if (!cut && fits && !reader.malformed && memory && count == 1)
        return map_memory(connection, number, descriptors[0]);
    for (int i = 0; i < count; i++)
        close(descriptors[i]);
    if (size == 0)
        return RECEIVED_END;
    if (cut && memory && count == 0)
        return set_fault(connection, "no file descriptors are left for the memory of its calls");
    if (cut)
        return set_fault(connection, "a message about calls was longer than the protocol allows");
    if (!fits) {
        snprintf(connection->fault, sizeof connection->fault, "the worker sent %s", shape_error.text);
        return RECEIVED_FAULT;
    }
    if (reader.malformed || memory || count)
        return set_fault(connection, "the worker sent a malformed message about a call");
    return forget ? unmap_memory(connection, number) : RECEIVED_MESSAGE;
}

Received call_connection_receive(CallConnection *connection, int timeout_ms, Reader *message)
{
    pthread_mutex_lock(&connection->sending);
    size_t queued = connection->queued;
    pthread_mutex_unlock(&connection->sending);
    short events = (short)((queued < MAX_QUEUED ? POLLIN : 0) | (queued ? POLLOUT : 0));
    struct pollfd waiting[2] = {{.fd = connection->fd, .events = events}, {.fd = connection->wake, .events = POLLIN}};
    if (poll(waiting, 2, timeout_ms) < 0)
        return errno == EINTR ? RECEIVED_NOTHING : RECEIVED_END;
    eventfd_t ignored;
    if (waiting[1].revents && eventfd_read(connection->wake, &ignored) == 0)
        waiting[0].revents |= POLLOUT;
    if (waiting[0].revents & POLLOUT)
        flush(connection);
    return waiting[0].revents & ~POLLOUT ? receive_message(connection, message) : RECEIVED_NOTHING;
}

const uint8_t *call_connection_memory(CallConnection *connection, int64_t number, int64_t offset, int64_t size)
{
    Memory *memory = find_memory(connection, number);
    return memory ? mapped_bytes(&memory->memory, offset, size) : NULL;
}

void call_connection_close(CallConnection *connection)
{
    pthread_mutex_lock(&connection->sending);
    connection->closed = true;
    if (connection->fd >= 0)
        close(connection->fd);
    while (connection->first) {
        Packet *packet = connection->first;
        connection->first = packet->next;
        free_packet(packet);
    }
    connection->last = NULL;
    pthread_mutex_unlock(&connection->sending);
    for (size_t i = 0; i < connection->memory_count; i++)
        mapped_close(&connection->memories[i].memory);
    free(connection->memories);
    connection->memories = NULL;
    connection->memory_count = 0;
}
