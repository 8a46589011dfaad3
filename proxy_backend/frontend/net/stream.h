/* Reads and writes the bytes of a connection, plain or through TLS. */
#ifndef PYTRITON_FRONTEND_NET_STREAM_H
#define PYTRITON_FRONTEND_NET_STREAM_H

#include "net/tls.h"

#include <sys/types.h>
#include <sys/uio.h>

/* Results of reading and writing other than a number of bytes. 0 means none at the moment. */
enum {
    STREAM_END = -1,    /* the peer will not send any more */
    STREAM_BROKEN = -2, /* neither reading nor writing is possible any more */
};

typedef struct {
    int fd;        /* non-blocking */
    void *session; /* the TLS session; NULL if the connection is plain */
    bool handshaken;
    bool wants_write; /* TLS cannot continue reading or the handshake until the socket is writable */
} Stream;

/* Open a stream. `tls` is NULL for a plain one. Always takes ownership of the descriptor. Returns false without
 * memory.
 */
bool stream_open(Stream *stream, int fd, const Tls *tls);
/* Continue the TLS handshake. Returns 1 when it is complete, 0 if it waits for the peer, or STREAM_BROKEN with a
 * problem.
 */
int stream_handshake(Stream *stream, Problem *problem);
ssize_t stream_read(Stream *stream, void *to, size_t size);
/* Read from a plain unix socket. `descriptor` receives a descriptor that came with the data, which the caller then
 * owns, or -1. More than one gives STREAM_BROKEN.
 */
ssize_t stream_read_descriptor(Stream *stream, void *to, size_t size, int *descriptor);
/* Write data. The result may be smaller than the size of the data. With TLS, the rest must then be passed again, at
 * the same or another address.
 */
ssize_t stream_write(Stream *stream, const struct iovec *parts, int count);
/* Shut down writing. */
void stream_end(Stream *stream);
/* Shut down both directions. The descriptor stays open. With `resets`, data that the peer has not received yet is
 * dropped. Another thread may be writing to a plain stream.
 */
void stream_break(Stream *stream, bool resets);
void stream_close(Stream *stream);

#endif
