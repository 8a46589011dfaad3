/* The internals of a connection. Only for the files of this directory: connection.c (one connection), write.c,
 * connections.c (all connections) and listener.c.
 */
#ifndef PYTRITON_FRONTEND_NET_CONNECTION_INTERNAL_H
#define PYTRITON_FRONTEND_NET_CONNECTION_INTERNAL_H

#include "common/buffer.h"
#include "net/addresses.h"
#include "net/connection.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

/* The events that are always watched. Each change is reported once. */
#define CONNECTION_EVENTS ((uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLET))

typedef enum {
    PHASE_HANDSHAKE,
    PHASE_OPEN,
    PHASE_FINISHING, /* buffered data is still being sent */
    PHASE_LINGERING, /* all data has been sent; wait until the client closes its side, since it may not have read all */
    PHASE_CLOSED,
} Phase;

/* What any thread can ask the loop's thread to do. */
enum {
    POST_READ = 1,
    POST_WRITABLE = 2, /* on behalf of the protocol */
    POST_FLUSH = 4, /* to send buffered data */
    POST_FINISH = 8,
    POST_ABORT = 16,
};

struct Connection {
    Loop *loop;
    const Endpoint *endpoint;
    Stream stream;
    atomic_uint references;
    atomic_uint posted; /* not 0 while the task is queued in the loop */
    atomic_bool over; /* nothing that is written from now on will arrive */
    atomic_bool resets; /* when it ends, drop data in the kernel that the client has not read */
    Task task;

    /* Guarded by the lock `writing`: */
    pthread_mutex_t writing;
    bool blocked; /* the socket has refused data, and has not become writable since */
    Buffer buffered; /* data to send before anything else; the first `buffered_sent` bytes have been sent */
    size_t buffered_sent;
    size_t buffered_counted; /* the part of it that is counted (net/limits.h) */
    uint64_t taken; /* bytes that the socket has accepted */
    Progress read_progress; /* the client's progress in reading, while much is buffered */

    /* Only the loop's thread uses these. */
    Watch watch;
    Timer deadline; /* the protocol's deadline, or net's own during the handshake and while lingering */
    Timer reader_timer; /* to check whether the client reads; set while data waits for it */
    Progress reading;
    uint64_t turn_bytes; /* bytes read in this turn */
    Connection *next, **link; /* in the loop's list */
    Phase phase;
    bool unread; /* there may be data to read */
    bool saw_end; /* the client has closed its side, so a short read does not mean that all data was read */
    bool read_waits; /* TLS has to write before it can continue reading */
    bool wants_writable; /* the protocol waits for `writable` */
    bool watches_output; /* EPOLLOUT is watched */
    bool reported_end, reported_gone, was_opened;
    bool is_adopted, is_handed_over; /* another process had it before, or has it now */
    bool is_counted, address_is_counted;
    Address address;
};

/* connection.c */
/* Create a connection from an accepted socket. Always takes ownership of the descriptor. Only in the loop's thread,
 * which holds the reference. Returns NULL if the connection had to be closed.
 */
Connection *connection_begin(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted);
void connection_post(Connection *connection, unsigned what);
/* Let the protocol move an open connection's client to the process that replaces this one. The dispatcher's
 * connections stay.
 */
void connection_retire(Connection *connection);
/* Continue according to the phase after the socket has become writable and nothing is buffered. */
void connection_flushed(Connection *connection);

/* write.c */
/* Send what has to be sent, and wait until the socket is writable if it is full. Only in the loop's thread. */
void connection_resume_writing(Connection *connection, bool socket_takes);
void connection_check_reader(Timer *timer);

/* connections.c */
typedef struct Connections Connections;
/* Returns the connections of a loop, or NULL without memory. */
Connections *connections_in(Loop *loop);
/* Count another connection, unless there are too many. Returns whether it is allowed. */
bool connections_admit(const Limits *limits);
/* Count another connection unconditionally. */
void connections_add(void);
void connections_remove(void);
/* Add a connection to its loop's list. */
void connections_link(Connection *connection);
void connections_unlink(Connection *connection);
bool connections_are_draining(Loop *loop);
bool connections_are_retiring(Loop *loop);

#endif
