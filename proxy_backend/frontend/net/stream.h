/* The bytes of one connection, plain or through TLS. */
#ifndef PYTRITON_FRONTEND_NET_STREAM_H
#define PYTRITON_FRONTEND_NET_STREAM_H

#include "net/tls.h"

#include <sys/types.h>
#include <sys/uio.h>

/* Return values of reading and writing besides a byte count. 0: none at the moment. */
enum {
    STREAM_END = -1,    /* the other side sends no more */
    STREAM_BROKEN = -2, /* nothing works any more, in either direction */
};

typedef struct {
    int fd;        /* non-blocking */
    void *session; /* of TLS; NULL: plain */
    bool handshaken;
    bool wants_write; /* TLS cannot continue reading or the handshake until the socket takes bytes */
} Stream;

/* `tls` NULL: plain. The stream takes the descriptor over, also if it returns false without memory. */
bool stream_open(Stream *stream, int fd, const Tls *tls);
/* Continue the TLS handshake: 1: done; 0: it waits for the other side; STREAM_BROKEN with the problem. */
int stream_handshake(Stream *stream, Problem *problem);
ssize_t stream_read(Stream *stream, void *to, size_t size);
/* Read from a plain unix socket, with the received descriptor, which the caller owns; -1: none. STREAM_BROKEN: more
 * than one was received.
 */
ssize_t stream_read_descriptor(Stream *stream, void *to, size_t size, int *descriptor);
/* May take fewer bytes than given. TLS: offered data must be offered again, at the same or another address. */
ssize_t stream_write(Stream *stream, const struct iovec *parts, int count);
/* Shut down writing. */
void stream_end(Stream *stream);
/* Break both directions; the descriptor stays open. With `resets`, data that the other side has not received yet is
 * dropped. Another thread may be writing if it is plain.
 */
void stream_break(Stream *stream, bool resets);
void stream_close(Stream *stream);

#endif
