/* Sends data on a connection: at once if the socket accepts it, otherwise from a buffer. Enforces the time limit for
 * clients that do not read.
 */
#define _GNU_SOURCE
#include "net/connection_internal.h"

#include "common/clock.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

/* This much may always be buffered for a connection, whatever other clients leave unread. It is more than gRPC passes
 * to the socket at once.
 */
enum { MIN_BUFFER_BYTES = 1 << 20 };

static size_t size_of(const struct iovec *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += parts[i].iov_len;
    return size;
}

/* Returns whether this thread may write. OpenSSL's sessions are not thread-safe, and the loop's thread uses them to
 * read.
 */
static bool may_write_here(const Connection *connection)
{
    return connection->stream.session == NULL || loop_is_here(connection->loop);
}

/* Write to the socket. The caller holds the lock. */
static ssize_t write_now(Connection *connection, const struct iovec *parts, int count)
{
    ssize_t written = stream_write(&connection->stream, parts, count);
    if (written > 0)
        connection->taken += (uint64_t)written;
    if (written >= 0)
        connection->blocked = (size_t)written < size_of(parts, count);
    return written;
}

ssize_t connection_write(Connection *connection, const struct iovec *parts, int count)
{
    ssize_t written = 0;
    if (connection_is_over(connection))
        return STREAM_BROKEN;
    if (!may_write_here(connection))
        return 0;
    pthread_mutex_lock(&connection->writing);
    if (!connection->blocked && connection->buffered.size == 0)
        written = write_now(connection, parts, count);
    pthread_mutex_unlock(&connection->writing);
    if (written == STREAM_BROKEN)
        connection_abort(connection);
    return written;
}

/* Returns how much the client has read: the bytes that were written to the socket and are not in it any more. The
 * caller holds the lock.
 */
static uint64_t read_by_client(const Connection *connection)
{
    int waiting = 0;
    if (ioctl(connection->stream.fd, SIOCOUTQ, &waiting) != 0)
        waiting = 0;
    return connection->taken -
        (uint64_t)waiting; /* May be "negative", if the kernel counts more than the data. Only differences matter. */
}

/* Returns whether the client leaves too much buffered data unread. The caller holds the lock. */
static bool is_unread(Connection *connection)
{
    const Limits *limits = connection->endpoint->limits;
    size_t unread = connection->buffered.size - connection->buffered_sent;
    if (unread > limits->unsent_bytes) /* Otherwise, the timer does not run. */
        connection->read_progress.bytes = read_by_client(connection);
    return limits_are_unread(limits, &connection->read_progress, unread, clock_ms());
}

/* Buffer data. Returns false without memory, or if too much is buffered. The caller holds the lock. */
static bool buffer_parts(Connection *connection, const struct iovec *parts, int count, size_t skipped)
{
    Buffer *buffered = &connection->buffered;
    size_t more = size_of(parts, count) - skipped, unread = buffered->size - connection->buffered_sent;
    if (is_unread(connection))
        return false;
    if (unread + more <= MIN_BUFFER_BYTES || connection->endpoint->is_admin)
        unsent_add(more);
    else if (!unsent_reserve(connection->endpoint->limits, unread, more))
        return false;
    connection->buffered_counted += more;
    if (connection->buffered_sent > buffered->size / 2) { /* On average, this costs less than sending the data did. */
        memmove(buffered->data, buffered->data + connection->buffered_sent, buffered->size - connection->buffered_sent);
        buffered->size -= connection->buffered_sent;
        connection->buffered_sent = 0;
    }
    if (!buffer_reserve(buffered, more))
        return false;
    for (int i = 0; i < count; i++) {
        size_t less = skipped < parts[i].iov_len ? skipped : parts[i].iov_len;
        buffer_put(buffered, (const char *)parts[i].iov_base + less, parts[i].iov_len - less);
        skipped -= less;
    }
    return true;
}

bool connection_write_all(Connection *connection, const struct iovec *parts, int count)
{
    ssize_t written = 0;
    bool fits = true;
    if (connection_is_over(connection))
        return false;
    size_t size = size_of(parts, count);
    pthread_mutex_lock(&connection->writing);
    if (!connection->blocked && connection->buffered.size == 0 && may_write_here(connection))
        written = write_now(connection, parts, count);
    bool rest = written >= 0 && (size_t)written < size;
    if (rest)
        fits = buffer_parts(connection, parts, count, (size_t)written);
    pthread_mutex_unlock(&connection->writing);
    if (written == STREAM_BROKEN)
        connection_abort(connection);
    else if (!fits)
        connection_refuse(connection, REFUSED_UNSENT_BYTES);
    else if (rest)
        connection_post(connection, POST_FLUSH);
    return written >= 0 && fits;
}

size_t connection_unsent(Connection *connection)
{
    pthread_mutex_lock(&connection->writing);
    size_t size = connection->buffered.size - connection->buffered_sent;
    pthread_mutex_unlock(&connection->writing);
    return size;
}

void connection_await_writable(Connection *connection)
{
    connection_post(connection, POST_WRITABLE);
}

/* Send buffered data. The caller holds the lock. */
static bool send_buffered(Connection *connection)
{
    Buffer *buffered = &connection->buffered;
    ssize_t written = 0;
    while (!connection->blocked && connection->buffered_sent < buffered->size) {
        struct iovec rest = {buffered->data + connection->buffered_sent, buffered->size - connection->buffered_sent};
        written = write_now(connection, &rest, 1);
        if (written < 0)
            return false;
        connection->buffered_sent += (size_t)written;
        connection->buffered_counted -= (size_t)written;
        unsent_release((size_t)written);
    }
    if (connection->buffered_sent == buffered->size) {
        buffer_free(buffered);
        *buffered = (Buffer){0};
        connection->buffered_sent = 0;
    }
    return true;
}

static uint64_t bytes_read_by_client(Connection *connection)
{
    pthread_mutex_lock(&connection->writing);
    uint64_t read = read_by_client(connection);
    pthread_mutex_unlock(&connection->writing);
    return read;
}

/* Check whether the client reads, and set the time of the next check. */
static void check_reader(Connection *connection)
{
    const Limits *limits = connection->endpoint->limits;
    uint64_t now_ms = loop_now_ms(connection->loop);
    connection->reading.bytes = bytes_read_by_client(connection);
    if (progress_stalls(&connection->reading, true, LIMITS_PROGRESS, unsent_timeout_ms(limits), now_ms))
        connection_refuse(connection, REFUSED_UNSENT_TIME);
    else
        loop_set_timer(connection->loop, &connection->reader_timer, now_ms + unsent_check_interval_ms(limits));
}

void connection_check_reader(Timer *timer)
{
    check_reader((Connection *)((char *)timer - offsetof(Connection, reader_timer)));
}

static void watch_output(Connection *connection, bool wanted)
{
    if (wanted == connection->watches_output)
        return;
    connection->watches_output = wanted;
    if (!loop_rewatch(connection->loop, &connection->watch, CONNECTION_EVENTS | (wanted ? EPOLLOUT : 0u)))
        connection_refuse(connection, REFUSED_DESCRIPTORS);
}

void connection_resume_writing(Connection *connection, bool socket_takes)
{
    pthread_mutex_lock(&connection->writing);
    if (socket_takes)
        connection->blocked = false;
    bool works = send_buffered(connection), waits = connection->blocked;
    pthread_mutex_unlock(&connection->writing);
    if (!works) {
        connection_abort(connection);
        return;
    }
    if (!waits)
        connection_flushed(connection); /* This may write. */
    pthread_mutex_lock(&connection->writing);
    waits = connection->blocked && (connection->buffered.size || connection->wants_writable);
    pthread_mutex_unlock(&connection->writing);
    watch_output(connection, waits || connection->read_waits);
    if (waits && connection->reader_timer.due_ms == 0) {
        check_reader(connection);
    } else if (!waits) {
        loop_clear_timer(connection->loop, &connection->reader_timer);
        connection->reading = (Progress){0};
    }
}
