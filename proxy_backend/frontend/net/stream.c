#define _GNU_SOURCE
#include "net/stream.h"
#include "net/openssl.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

/* Maximum payload of a TLS record. */
enum { RECORD = 16384 };

bool stream_open(Stream *stream, int fd, const Tls *tls)
{
    *stream = (Stream){.fd = fd, .handshaken = tls == NULL};
    if (tls)
        stream->session = tls_session(tls, fd);
    if (tls == NULL || stream->session)
        return true;
    stream_close(stream);
    return false;
}

int stream_handshake(Stream *stream, Problem *problem)
{
    if (stream->handshaken)
        return 1;
    openssl.ERR_clear_error();
    int result = openssl.SSL_accept(stream->session);
    if (result == 1) {
        stream->handshaken = true;
        stream->wants_write = false;
        return 1;
    }
    int error = openssl.SSL_get_error(stream->session, result);
    stream->wants_write = error == SSL_WANTS_WRITE;
    if (error == SSL_WANTS_READ || error == SSL_WANTS_WRITE)
        return 0;
    tls_failed(problem, "the handshake failed");
    return STREAM_BROKEN;
}

static ssize_t read_plain(Stream *stream, void *to, size_t size)
{
    for (;;) {
        ssize_t count = recv(stream->fd, to, size, MSG_DONTWAIT);
        if (count > 0)
            return count;
        if (count == 0)
            return STREAM_END;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            return STREAM_BROKEN;
    }
}

ssize_t stream_read(Stream *stream, void *to, size_t size)
{
    if (size == 0)
        return 0;
    if (stream->session == NULL)
        return read_plain(stream, to, size);
    openssl.ERR_clear_error();
    int count = openssl.SSL_read(stream->session, to, size > 1 << 30 ? 1 << 30 : (int)size);
    if (count > 0)
        return count;
    int error = openssl.SSL_get_error(stream->session, count);
    stream->wants_write = error == SSL_WANTS_WRITE;
    if (error == SSL_WANTS_READ || error == SSL_WANTS_WRITE)
        return 0;
    openssl.ERR_clear_error();
    return error == SSL_ENDED ? STREAM_END : STREAM_BROKEN;
}

static ssize_t write_plain(Stream *stream, const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    for (;;) {
        ssize_t written = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written >= 0)
            return written;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            return STREAM_BROKEN;
    }
}

/* Pass the only descriptor in a message to the caller. Closes all if there are several, and returns false. */
static bool take_descriptors(struct msghdr *message, int *descriptor)
{
    bool is_one = true;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int came;
            memcpy(&came, CMSG_DATA(part) + at, sizeof came);
            if (*descriptor < 0)
                *descriptor = came;
            else
                close(came);
            is_one &= *descriptor == came;
        }
    }
    /* If a descriptor was cut off, this process may have reached its limit. Treat it as if none had been sent. */
    return is_one && (*descriptor < 0 || (message->msg_flags & MSG_CTRUNC) == 0);
}

ssize_t stream_read_descriptor(Stream *stream, void *to, size_t size, int *descriptor)
{
    /* With room for two, an extra descriptor is detected. The kernel closes those that do not fit. */
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {to, size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t count;
    *descriptor = -1;
    do
        count = recvmsg(stream->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : STREAM_BROKEN;
    if (take_descriptors(&message, descriptor))
        return count > 0 ? count : STREAM_END;
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
    return STREAM_BROKEN;
}

/* Copy up to a record's size of the data after the first `skipped` bytes. Returns the number of copied bytes. */
static size_t gather(const struct iovec *parts, int count, size_t skipped, char record[RECORD])
{
    size_t size = 0;
    for (int i = 0; i < count && size < RECORD; i++) {
        if (skipped >= parts[i].iov_len) {
            skipped -= parts[i].iov_len;
            continue;
        }
        size_t piece = parts[i].iov_len - skipped < RECORD - size ? parts[i].iov_len - skipped : RECORD - size;
        memcpy(record + size, (const char *)parts[i].iov_base + skipped, piece);
        size += piece;
        skipped = 0;
    }
    return size;
}

static ssize_t write_record(Stream *stream, const char *record, size_t size)
{
    openssl.ERR_clear_error();
    int written = openssl.SSL_write(stream->session, record, (int)size);
    if (written > 0)
        return written;
    if (openssl.SSL_get_error(stream->session, written) == SSL_WANTS_WRITE)
        return 0;
    openssl.ERR_clear_error();
    return STREAM_BROKEN;
}

ssize_t stream_write(Stream *stream, const struct iovec *parts, int count)
{
    char record[RECORD];
    size_t total = 0, size;
    if (stream->session == NULL)
        return write_plain(stream, parts, count);
    while ((size = gather(parts, count, total, record))) {
        ssize_t written = write_record(stream, record, size);
        if (written <= 0)
            return total ? (ssize_t)total : written;
        total += (size_t)written;
    }
    return (ssize_t)total;
}

void stream_end(Stream *stream)
{
    if (stream->session && stream->handshaken) {
        openssl.SSL_shutdown(stream->session);
        openssl.ERR_clear_error();
    }
    shutdown(stream->fd, SHUT_WR);
}

void stream_break(Stream *stream, bool resets)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    if (!resets ||
        connect(stream->fd, &nowhere, sizeof nowhere) != 0) /* Disconnecting resets a TCP connection, see connect(2). */
        shutdown(stream->fd, SHUT_RDWR);
}

void stream_close(Stream *stream)
{
    if (stream->session)
        openssl.SSL_free(stream->session);
    if (stream->fd >= 0)
        close(stream->fd);
    *stream = (Stream){.fd = -1};
}
