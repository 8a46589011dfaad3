/* The life of a connection. */
#define _GNU_SOURCE
#include "net/connection_internal.h"

#include "thread_pool/memory_trim.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TURN_BYTES = 4 << 20, /* limit for reading from one connection before other connections get their turn */
    LINGER_MS = 2000,
    STATE_OFFSET = (sizeof(Connection) + 15) / 16 * 16,
};

static const Protocol *protocol(const Connection *connection)
{
    return connection->endpoint->protocol;
}

void *connection_state(Connection *connection)
{
    return (char *)connection + STATE_OFFSET;
}

Connection *connection_of(void *state)
{
    return (Connection *)((char *)state - STATE_OFFSET);
}

Loop *connection_loop(const Connection *connection)
{
    return connection->loop;
}

const Endpoint *connection_endpoint(const Connection *connection)
{
    return connection->endpoint;
}

const char *connection_peer(const Connection *connection, char text[CONNECTION_PEER])
{
    address_write(&connection->address, text, CONNECTION_PEER);
    return text;
}

uint16_t connection_loopback_port(const Connection *connection)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } local = {.any.sa_family = AF_UNSPEC};
    socklen_t size = sizeof local;
    if (getsockname(connection->stream.fd, &local.any, &size) != 0)
        return 0;
    if (local.any.sa_family == AF_INET)
        return ntohl(local.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET ? ntohs(local.v4.sin_port) : 0;
    if (local.any.sa_family != AF_INET6)
        return 0;
    const struct in6_addr *address = &local.v6.sin6_addr;
    bool is_loopback =
        IN6_IS_ADDR_LOOPBACK(address) || (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr[12] == IN_LOOPBACKNET);
    return is_loopback ? ntohs(local.v6.sin6_port) : 0;
}

bool connection_is_tls(const Connection *connection)
{
    return connection->stream.session != NULL;
}

bool connection_is_local(const Connection *connection)
{
    return !connection->address.is_ip;
}

Connection *connection_ref(Connection *connection)
{
    atomic_fetch_add_explicit(&connection->references, 1, memory_order_relaxed);
    return connection;
}

/* The memory of so many connections, or of one with a larger buffer, is worth returning to the system. The daemon's
 * probes, which are a connection each, would otherwise keep that thread busy in an idle server.
 */
enum { FREED_PER_TRIM = 64, LARGE_BUFFER = 1 << 18 };
static atomic_uint freed;

void connection_unref(Connection *connection)
{
    if (atomic_fetch_sub_explicit(&connection->references, 1, memory_order_acq_rel) != 1)
        return;
    if (connection->was_opened && protocol(connection)->freed)
        protocol(connection)->freed(connection);
    stream_close(&connection->stream);
    if (connection->address_is_counted)
        addresses_remove(&connection->address);
    bool is_counted = connection->is_counted, is_large = connection->buffered.room > LARGE_BUFFER;
    buffer_free(&connection->buffered);
    unsent_release(connection->buffered_counted);
    pthread_mutex_destroy(&connection->writing);
    free(connection);
    if (is_large || atomic_fetch_add_explicit(&freed, 1, memory_order_relaxed) % FREED_PER_TRIM == FREED_PER_TRIM - 1)
        memory_trim_notify();
    if (is_counted)
        connections_remove(); /* Do this last: a thread that waits for it may end the process. */
}

bool connection_is_over(const Connection *connection)
{
    return atomic_load_explicit(&connection->over, memory_order_acquire);
}

void connection_post(Connection *connection, unsigned what)
{
    if (atomic_fetch_or(&connection->posted, what) == 0) {
        connection_ref(connection);
        loop_post(connection->loop, &connection->task);
    }
}

void connection_read_later(Connection *connection)
{
    connection_post(connection, POST_READ);
}

void connection_finish(Connection *connection)
{
    atomic_store(&connection->over, true);
    connection_post(connection, POST_FINISH);
}

void connection_abort(Connection *connection)
{
    atomic_store(&connection->over, true);
    connection_post(connection, POST_ABORT);
}

void connection_refuse(Connection *connection, Refusal refusal)
{
    refusals_count(refusal);
    /* Otherwise, unread data would stay in the kernel for minutes. */
    if (refusal == REFUSED_UNSENT_TIME || refusal == REFUSED_UNSENT_BYTES)
        atomic_store(&connection->resets, true);
    connection_abort(connection);
}

void connection_set_deadline(Connection *connection, uint64_t after_ms)
{
    if (after_ms == 0 || connection->phase > PHASE_OPEN)
        loop_clear_timer(connection->loop, &connection->deadline);
    else
        loop_set_timer(connection->loop, &connection->deadline, loop_now_ms(connection->loop) + after_ms);
}

/* ---- the end ---- */

static void close_now(Connection *connection)
{
    if (connection->phase == PHASE_CLOSED)
        return;
    connection->phase = PHASE_CLOSED;
    atomic_store(&connection->over, true);
    loop_unwatch(connection->loop, &connection->watch);
    loop_clear_timer(connection->loop, &connection->deadline);
    loop_clear_timer(connection->loop, &connection->reader_timer);
    bool resets = atomic_load(&connection->resets);
    if (!connection->is_handed_over && (resets || !connection->endpoint->is_shared))
        stream_break(&connection->stream, resets);
    connections_unlink(connection);
    if (connection->was_opened)
        protocol(connection)->closed(connection);
    connection_unref(connection);
}

/* Read and discard what the client still sends. If data is unread at the close, the kernel resets the connection, and
 * the client may not see the answer.
 */
static void discard(Connection *connection)
{
    char *scratch = loop_scratch(connection->loop);
    for (int i = 0; i < TURN_BYTES / LOOP_SCRATCH; i++) {
        ssize_t count = stream_read(&connection->stream, scratch, LOOP_SCRATCH);
        if (count == 0)
            return;
        if (count < 0) {
            connection_abort(connection);
            return;
        }
    }
    connection_post(connection, POST_READ);
}

static void linger(Connection *connection)
{
    connection->phase = PHASE_LINGERING;
    stream_end(&connection->stream);
    loop_set_timer(connection->loop, &connection->deadline, loop_now_ms(connection->loop) + LINGER_MS);
    discard(connection);
}

void connection_flushed(Connection *connection)
{
    if (connection->phase == PHASE_FINISHING) {
        linger(connection);
    } else if (connection->phase == PHASE_OPEN && connection->wants_writable) {
        connection->wants_writable = false;
        protocol(connection)->writable(connection);
    }
}

bool connection_hand_over(
    Connection *connection, bool (*take)(void *user, const Endpoint *endpoint, int fd), void *user)
{
    if (connection->phase != PHASE_OPEN || connection_is_over(connection) || connection->stream.session ||
        connection_unsent(connection) || !take(user, connection->endpoint, connection->stream.fd))
        return false;
    connection->is_handed_over = true;
    connection_abort(connection); /* This process must not read or write here any more. */
    return true;
}

bool connection_is_adopted(const Connection *connection)
{
    return connection->is_adopted;
}

/* ---- reading ---- */

static void readable(Connection *connection)
{
    connection->turn_bytes = 0;
    if (connection->phase == PHASE_OPEN && !connection_is_over(connection))
        protocol(connection)->readable(connection);
    else if (connection->phase == PHASE_LINGERING)
        discard(connection);
}

static ssize_t read_some(Connection *connection, void *to, size_t size, int *descriptor)
{
    if (connection_is_over(connection))
        return STREAM_BROKEN;
    if (!connection->unread)
        return 0;
    if (connection->turn_bytes >= TURN_BYTES) {
        connection_post(connection, POST_READ);
        return 0;
    }
    ssize_t count = descriptor ? stream_read_descriptor(&connection->stream, to, size, descriptor)
                               : stream_read(&connection->stream, to, size);
    if (count > 0) {
        connection->turn_bytes += (uint64_t)count;
        if ((size_t)count < size && !connection->saw_end && connection->stream.session == NULL)
            connection->unread = false; /* The socket is empty. epoll reports new data. */
    } else if (count == 0) {
        connection->unread = false;
        connection->read_waits = connection->stream.wants_write;
        if (connection->read_waits)
            connection_post(connection, POST_FLUSH);
    } else if (count == STREAM_BROKEN) {
        connection_abort(connection);
    }
    return count;
}

ssize_t connection_read(Connection *connection, void *to, size_t size)
{
    return read_some(connection, to, size, NULL);
}

ssize_t connection_read_descriptor(Connection *connection, void *to, int *descriptor)
{
    *descriptor = -1;
    return read_some(connection, to, 1, descriptor);
}

bool connection_has_unread(const Connection *connection)
{
    return connection->unread;
}

/* ---- events ---- */

static void open_now(Connection *connection)
{
    connection->phase = PHASE_OPEN;
    connection->was_opened = true;
    loop_clear_timer(connection->loop, &connection->deadline);
    protocol(connection)->opened(connection);
    if (connections_are_retiring(connection->loop))
        connection_retire(connection);
    if (connections_are_draining(connection->loop))
        protocol(connection)->drain(connection);
}

void connection_retire(Connection *connection)
{
    if (!connection->endpoint->is_admin && protocol(connection)->retire)
        protocol(connection)->retire(connection);
}

static void handshake(Connection *connection)
{
    Problem problem = {0};
    char peer[CONNECTION_PEER];
    int done = stream_handshake(&connection->stream, &problem);
    if (done == 1) {
        open_now(connection);
        connection->unread = true; /* The TLS session may hold data that the socket does not have. */
        connection_post(connection, POST_READ);
    } else if (done < 0) {
        log_verbose("%s: %s", connection_peer(connection, peer), problem_text(&problem));
        connection_refuse(connection, REFUSED_HANDSHAKE);
    }
    problem_clear(&problem);
    connection->read_waits = connection->stream.wants_write;
    if (connection->read_waits || connection->watches_output)
        connection_resume_writing(connection, false);
}

static void report_end(Connection *connection, uint32_t events)
{
    bool gone = events & (EPOLLHUP | EPOLLERR);
    if (connection->phase == PHASE_FINISHING && gone)
        connection_abort(connection);
    if (connection->phase != PHASE_OPEN || connection_is_over(connection) || protocol(connection)->hung_up == NULL)
        return;
    if (gone && !connection->reported_gone) {
        connection->reported_end = connection->reported_gone = true;
        protocol(connection)->hung_up(connection, true);
    } else if (!connection->reported_end) {
        connection->reported_end = true;
        protocol(connection)->hung_up(connection, false);
    }
}

static void ready(Watch *watch, uint32_t events)
{
    Connection *connection = (Connection *)((char *)watch - offsetof(Connection, watch));
    const uint32_t ends = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    if (connection->phase == PHASE_HANDSHAKE) {
        if (!connection_is_over(connection))
            handshake(connection);
    } else if (events & EPOLLOUT) {
        bool read_waited = connection->read_waits;
        connection->read_waits = false;
        connection->unread |= read_waited;
        connection_resume_writing(connection, true);
        if (read_waited)
            readable(connection);
    }
    connection->saw_end |= (events & ends) != 0;
    if (events & (EPOLLIN | ends)) {
        connection->unread = true;
        readable(connection);
    }
    if (events & ends)
        report_end(connection, events);
}

static void run_task(Task *task)
{
    Connection *connection = (Connection *)((char *)task - offsetof(Connection, task));
    unsigned asked = atomic_exchange(&connection->posted, 0);
    if (asked & POST_ABORT) {
        close_now(connection);
    } else if (connection->phase != PHASE_CLOSED) {
        connection->wants_writable |= (asked & POST_WRITABLE) != 0;
        if ((asked & POST_FINISH) && connection->phase <= PHASE_OPEN) {
            connection->phase = PHASE_FINISHING;
            loop_clear_timer(connection->loop, &connection->deadline);
        }
        if (asked & (POST_FINISH | POST_FLUSH | POST_WRITABLE))
            connection_resume_writing(connection, false);
        if (asked & POST_READ)
            readable(connection);
    }
    connection_unref(connection);
}

static void deadline_passed(Timer *timer)
{
    Connection *connection = (Connection *)((char *)timer - offsetof(Connection, deadline));
    if (connection->phase == PHASE_HANDSHAKE)
        connection_refuse(connection, REFUSED_HANDSHAKE_TIME);
    else if (connection->phase == PHASE_LINGERING)
        connection_abort(connection);
    else if (!connection_is_over(connection))
        protocol(connection)->timed_out(connection);
}

/* ---- the beginning ---- */

static Connection *new_connection(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted)
{
    Connection *connection = calloc(1, STATE_OFFSET + endpoint->protocol->size);
    if (connection == NULL)
        return NULL;
    connection->loop = loop;
    connection->endpoint = endpoint;
    atomic_init(&connection->references, 1);
    connection->task.run = run_task;
    pthread_mutex_init(&connection->writing, NULL);
    connection->watch = (Watch){.fd = fd, .ready = ready};
    connection->deadline.expired = deadline_passed;
    connection->reader_timer.expired = connection_check_reader;
    connection->is_counted = !endpoint->is_admin;
    connection->address_is_counted = address_is_counted;
    connection->address = *address;
    return connection;
}

static Connection *begin(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted, bool is_adopted)
{
    Connection *connection = new_connection(loop, endpoint, fd, address, address_is_counted);
    if (connection == NULL) {
        close(fd);
        if (address_is_counted)
            addresses_remove(address);
        if (!endpoint->is_admin)
            connections_remove();
        refusals_count(REFUSED_DESCRIPTORS);
        return NULL;
    }
    connection->is_adopted = is_adopted;
    if (!stream_open(&connection->stream, fd, endpoint->tls) ||
        !loop_watch(loop, &connection->watch, CONNECTION_EVENTS)) {
        refusals_count(REFUSED_DESCRIPTORS);
        connection_unref(connection);
        return NULL;
    }
    connections_link(connection);
    if (endpoint->tls)
        loop_set_timer(loop, &connection->deadline, loop_now_ms(loop) + endpoint->limits->handshake_ms);
    else
        open_now(connection);
    return connection;
}

Connection *connection_begin(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted)
{
    return begin(loop, endpoint, fd, address, address_is_counted, false);
}

Connection *connection_adopt(Loop *loop, const Endpoint *endpoint, int fd)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    uint64_t most = endpoint->limits->connections_per_address;
    if (getpeername(fd, (struct sockaddr *)&from, &size) != 0) { /* The connection has already ended. */
        close(fd);
        return NULL;
    }
    Address address = address_from(&from);
    connections_add();
    return begin(loop, endpoint, fd, &address, most && addresses_add(&address, most), true);
}

Connection *connection_share(Loop *loop, const Endpoint *endpoint, int fd)
{
    static const Address nowhere;
    return connection_begin(loop, endpoint, fd, &nowhere, false);
}
