/* The bytes of one connection: as they are, or through TLS. */
#ifndef PYTRITON_FRONT_STREAM_H
#define PYTRITON_FRONT_STREAM_H

#include "net/tls.h"

#include <sys/types.h>
#include <sys/uio.h>

/* What reading and writing return beside a number of bytes. 0: none at the moment. */
enum {
    STREAM_END = -1,    /* the other side has said that it sends no more */
    STREAM_BROKEN = -2, /* nothing goes any more, in either direction */
};

typedef struct {
    int fd;        /* non-blocking */
    void *session; /* of TLS; NULL: plain */
    bool handshaken;
    bool wants_write; /* TLS cannot go on, reading or shaking hands, before the socket takes bytes */
} Stream;

/* `tls` NULL: plain. The descriptor is the stream's from now on, also when there is no memory: false. */
bool stream_open(Stream *stream, int fd, const Tls *tls);
/* Go on with the handshake of TLS: 1, it is done; 0, it waits for the other side; STREAM_BROKEN with the problem. */
int stream_handshake(Stream *stream, Problem *problem);
/* TLS: the protocol that the handshake agreed on, such as "h2"; empty: none. It is valid as long as the stream. */
Slice stream_protocol(const Stream *stream);
ssize_t stream_read(Stream *stream, void *to, size_t size);
/* The same of a plain unix socket, with the descriptor that came with it, which is the caller's; -1: none. STREAM_BROKEN: more than one came. */
ssize_t stream_read_descriptor(Stream *stream, void *to, size_t size, int *descriptor);
/* May take fewer bytes than there are. TLS: what has been offered once has to be offered again, at the same place or another one. */
ssize_t stream_write(Stream *stream, const struct iovec *parts, int count);
/* Say that no more will be written. */
void stream_end(Stream *stream);
/* Nothing goes any more, in either direction; the descriptor stays. With `resets`, what the other side has not got yet is dropped. Another thread
 * may be writing, if it is plain. */
void stream_break(Stream *stream, bool resets);
void stream_close(Stream *stream);

#endif
