/* What a connection consists of, for the files that make one up: connection.c (its life), writing.c, connections.c (all of them), listener.c. */
#ifndef PYTRITON_FRONT_CONNECTION_PARTS_H
#define PYTRITON_FRONT_CONNECTION_PARTS_H

#include "base/text.h"
#include "net/addresses.h"
#include "net/connection.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

/* What is always watched: each edge is told once. */
#define CONNECTION_EVENTS ((uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLET))

typedef enum {
    PHASE_HANDSHAKE,
    PHASE_OPEN,
    PHASE_FINISHING, /* what is kept is still being sent */
    PHASE_LINGERING, /* all has been sent: until the client has ended its side, it may not have read all of it */
    PHASE_CLOSED,
} Phase;

/* What the loop's thread is asked to do, by any thread. */
enum {
    ASK_READ = 1,
    ASK_WRITABLE = 2, /* for the protocol */
    ASK_FLUSH = 4, /* for what is kept */
    ASK_FINISH = 8,
    ASK_ABORT = 16,
};

struct Connection {
    Loop *loop;
    const Endpoint *endpoint;
    Stream stream;
    atomic_uint references;
    atomic_uint asked; /* not 0: the task has been given to the loop */
    atomic_bool over; /* nothing that is written from now on will arrive */
    atomic_bool resets; /* its end drops what lies unread in the kernel */
    Task task;

    /* Under the lock. */
    pthread_mutex_t writing;
    bool blocked; /* the socket did not take all, and has not said since that it takes more */
    Text kept; /* what is to be sent before anything else, from `kept_sent` on */
    size_t kept_sent;
    size_t kept_counted; /* bytes of it that are counted (net/limits.h) */
    uint64_t taken; /* bytes that the socket took */
    Progress taking; /* of the client, where much is kept */

    /* The loop's thread's. */
    Watch watch;
    Timer deadline; /* the protocol's, or net's own while it shakes hands and while it lingers */
    Timer patience; /* to check whether a client reads; set as long as something waits for it */
    Progress reading;
    uint64_t turn_bytes; /* read in this turn */
    Connection *next, **link; /* of all in the loop */
    Phase phase;
    bool unread; /* there may be something to read */
    bool
        saw_end; /* the client has ended its side: a read that returns less than it could does not mean that it was all */
    bool read_waits; /* TLS has to write before it can read on */
    bool wants_writable; /* the protocol */
    bool watches_output; /* EPOLLOUT */
    bool told_end, told_gone, was_opened;
    bool is_adopted, is_let_go; /* another process had it before, has it now */
    bool is_counted, address_is_counted;
    Address address;
};

/* connection.c */
/* Begin with a socket that was accepted, which is taken over whatever happens. In the loop's thread, which has the reference; NULL: it has been
 * closed. */
Connection *connection_begin(
    Loop *loop, const Endpoint *endpoint, int fd, const Address *address, bool address_is_counted);
void connection_ask(Connection *connection, unsigned what);
/* An open one: have its client go to the process that takes this one's place. The dispatcher's stay. */
void connection_retire(Connection *connection);
/* Go on with what the phase is about, now that the socket takes bytes: called when nothing is kept and nothing blocks. */
void connection_flushed(Connection *connection);

/* writing.c */
/* Look what there is to be sent, and wait for the socket where it does not take it. In the loop's thread. */
void writing_go_on(Connection *connection, bool socket_takes);
void writing_out_of_patience(Timer *timer);

/* connections.c */
typedef struct Connections Connections;
/* Those of a loop; NULL: there is no memory. */
Connections *connections_in(Loop *loop);
/* Whether one more is allowed; count it. */
bool connections_admit(const Limits *limits);
/* Count one more, whether or not it is allowed. */
void connections_add(void);
void connections_forget(void);
/* Put it into its loop's list. */
void connections_link(Connection *connection);
void connections_unlink(Connection *connection);
bool connections_are_draining(Loop *loop);
bool connections_are_retiring(Loop *loop);

#endif
