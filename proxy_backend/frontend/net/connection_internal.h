/* The parts of a connection, for the files that implement it: connection.c (its life), write.c, connections.c (all
 * of them), listener.c.
 */
#ifndef PYTRITON_FRONTEND_NET_CONNECTION_INTERNAL_H
#define PYTRITON_FRONTEND_NET_CONNECTION_INTERNAL_H

#include "common/buffer.h"
#include "net/addresses.h"
#include "net/connection.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

/* The events that are always watched: each edge is reported once. */
#define CONNECTION_EVENTS ((uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLET))

typedef enum {
    PHASE_HANDSHAKE,
    PHASE_OPEN,
    PHASE_FINISHING, /* buffered data is still being sent */
    PHASE_LINGERING, /* all data has been sent, but the client may not have read all of it until it closes its side */
    PHASE_CLOSED,
} Phase;

/* What any thread may ask the loop's thread to do. */
enum {
    POST_READ = 1,
    POST_WRITABLE = 2, /* for the protocol */
    POST_FLUSH = 4, /* for buffered data */
    POST_FINISH = 8,
    POST_ABORT = 16,
};

struct Connection {
    Loop *loop;
    const Endpoint *endpoint;
    Stream stream;
    atomic_uint references;
    atomic_uint posted; /* not 0: the task is queued in the loop */
    atomic_bool over; /* nothing written from now on will arrive */
    atomic_bool resets; /* its end drops unread data in the kernel */
    Task task;

    /* Under the lock. */
    pthread_mutex_t writing;
    bool blocked; /* the socket did not take everything, and has not become writable since */
    Buffer buffered; /* data to send before anything else, from `buffered_sent` on */
    size_t buffered_sent;
    size_t buffered_counted; /* bytes of it that are counted (net/limits.h) */
    uint64_t taken; /* bytes that the socket took */
    Progress read_progress; /* the client's read progress, when much is buffered */

    /* Used by the loop's thread only. */
    Watch watch;
    Timer deadline; /* the protocol's, or net's own during the handshake and while it lingers */
    Timer reader_timer; /* to check whether a client reads; set while something waits for it */
    Progress reading;
    uint64_t turn_bytes; /* read in this turn */
    Connection *next, **link; /* in the loop's list */
    Phase phase;
    bool unread; /* there may be something to read */
    bool saw_end; /* the client has closed its side: a short read does not mean that everything was read */
    bool read_waits; /* TLS must write before it can continue reading */
    bool wants_writable; /* the protocol */
    bool watches_output; /* EPOLLOUT */
    bool reported_end, reported_gone, was_opened;
    bool is_adopted, is_handed_over; /* another process had it before, or has it now */
    bool is_counted, address_is_counted;
    Address address;
};

/* connection.c */
/* Create a connection from an accepted socket, which is taken over in any case. In the loop's thread, which holds the
 * reference; NULL: it has been closed.
 */
Connection *connection_begin(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted);
void connection_post(Connection *connection, unsigned what);
/* Move an open connection's client to the process that replaces this one. The dispatcher's connections stay. */
void connection_retire(Connection *connection);
/* Continue with the phase's work now that the socket takes bytes: called when nothing is buffered or blocked. */
void connection_flushed(Connection *connection);

/* write.c */
/* Check what must be sent, and wait until the socket is writable if it is full. In the loop's thread. */
void connection_resume_writing(Connection *connection, bool socket_takes);
void connection_check_reader(Timer *timer);

/* connections.c */
typedef struct Connections Connections;
/* Returns a loop's connections; NULL without memory. */
Connections *connections_in(Loop *loop);
/* Returns whether one more is allowed, and counts it. */
bool connections_admit(const Limits *limits);
/* Count one more, whether or not it is allowed. */
void connections_add(void);
void connections_remove(void);
/* Put it into its loop's list. */
void connections_link(Connection *connection);
void connections_unlink(Connection *connection);
bool connections_are_draining(Loop *loop);
bool connections_are_retiring(Loop *loop);

#endif
