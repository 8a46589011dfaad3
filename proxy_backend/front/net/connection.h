/* One client's connection: its life, its limits, and what its protocol is called for.
 *
 * Its life: accepted ▶ (TLS: handshake) ▶ `opened` ▶ `readable`, `writable`, `timed_out`, `hung_up`, `drain` ▶ `closed` ▶ `freed`.
 *
 * References. The loop has one until `closed`. A call that will answer on a connection has one of its own, and so may
 * write at any time: to a connection that is gone, it does nothing. The socket's descriptor stays until the last reference goes, so that
 * nothing is ever written to somebody else's.
 *
 * Threads. Each function says so if any thread may call it; all others, and all of the protocol's functions but `freed`, are for the loop's
 * thread. Writers take a lock of the connection's for the moment of the system call; which bytes come first is for the protocol to see to.
 *
 * Time. There is one deadline for the protocol, which is the loop's: an answer that is written in another thread cannot move it. So a protocol
 * leaves it set while a request is with the core, and looks in `timed_out` whether the connection has really been idle for that long.
 */
#ifndef PYTRITON_FRONT_CONNECTION_H
#define PYTRITON_FRONT_CONNECTION_H

#include "net/limits.h"
#include "net/loop.h"
#include "net/stream.h"

typedef struct Connection Connection;

typedef struct {
    const char *name; /* "http", "grpc": in logs and metrics */
    const char *alpn; /* "http/1.1", "h2" */
    size_t size;      /* of what it keeps for a connection, which is zero at first */
    /* Bytes for a client that is refused because there are too many connections, before its connection is closed; NULL: none. */
    Slice (*refusal)(Refusal refusal);
    /* It can be read and written: TLS has been agreed on. `readable` follows when something has come. */
    void (*opened)(Connection *connection);
    /* Something may have come: read until connection_read returns no more bytes, or stop, and call connection_read_later when it is time. */
    void (*readable)(Connection *connection);
    /* The answer to connection_await_writable. */
    void (*writable)(Connection *connection);
    /* The deadline has passed; it is not set any more. */
    void (*timed_out)(Connection *connection);
    /* The client will send no more (it may still read), or with `gone`: nothing can be sent to it either. Once each. NULL: reading will tell. */
    void (*hung_up)(Connection *connection, bool gone);
    /* The server is about to end: say goodbye, answer what is there, then connection_finish. A client may have sent a request already that has
     * not arrived, so one that is idle is told with its next answer, or ended a while later. */
    void (*drain)(Connection *connection);
    /* It is over, whoever ended it: cancel what is under way for it. Called once, by the loop itself and never from within another function. */
    void (*closed)(Connection *connection);
    /* The last reference has gone: free what lies in connection_state. Any thread. NULL: nothing is to be done. */
    void (*freed)(Connection *connection);
    /* Another process takes this one's place. Hand the connection over as soon as nothing is under way on it (connection_let_go), or have its client
     * leave without losing a request; until then it is served as before. NULL: the connection does not keep the process. */
    void (*retire)(Connection *connection);
} Protocol;

/* What listens, for all loops. It has to stay as long as there are connections. */
typedef struct Endpoint {
    int fd; /* bound, and listening; -1: its connections come by connection_share */
    const Protocol *protocol;
    void *service; /* the protocol's */
    const Tls *tls;
    const Limits *limits;
    bool is_admin; /* the dispatcher's private one: no restriction applies, nor any limit on connections */
    bool
        is_shared; /* other processes have its connections, too: their end here does not end them, unless the client does not read */
    const struct Endpoint *relays; /* of connections that may be handed over on this one, see relay.h; NULL: none may */
} Endpoint;

/* Begin with a socket that another process has handed over, and keeps; it is taken over whatever happens. The endpoint `is_shared`. NULL: it cannot be
 * watched, or there is no memory, and it has been closed. */
Connection *connection_share(Loop *loop, const Endpoint *endpoint, int fd);

/* Begin with a client's connection that another process has begun, and lets go of now; the descriptor is taken over whatever happens. No limit on
 * connections applies: they are there already. In the loop's thread. NULL: there is no memory, or it has ended. */
Connection *connection_adopt(Loop *loop, const Endpoint *endpoint, int fd);
/* Whether it is such a one. Requests may have been answered on it. */
bool connection_is_adopted(const Connection *connection);
/* Let another process go on with it: `take` is called with its descriptor, and returns whether that process has it. Then it is over here, and its client
 * notices nothing. The protocol must have nothing under way. False: `take` says so; or it is encrypted, or something is still to be sent. */
bool connection_let_go(Connection *connection, bool (*take)(void *user, const Endpoint *endpoint, int fd), void *user);

/* What the protocol keeps: `size` bytes. */
void *connection_state(Connection *connection);
/* The other way round. */
Connection *connection_of(void *state);
Loop *connection_loop(const Connection *connection);
const Endpoint *connection_endpoint(const Connection *connection);
/* Write the client's address, such as "127.0.0.1:3456" or "unix:", and NUL; returns `text`. */
enum { CONNECTION_PEER = 64 };
const char *connection_peer(const Connection *connection, char text[CONNECTION_PEER]);
/* The port that the client has connected to, if that was at a loopback address; else 0. */
uint16_t connection_loopback_port(const Connection *connection);
/* Whether a client's certificate was asked for and checked. */
bool connection_is_tls(const Connection *connection);
/* Whether it is on this machine and known to be so, by a unix socket: `hung_up` is then told at once that it has gone. */
bool connection_is_local(const Connection *connection);

/* Any thread. */
Connection *connection_ref(Connection *connection);
void connection_unref(Connection *connection);

/* Read what has come, at most `size` bytes. 0: that was all for now, and `readable` will be called; STREAM_END; STREAM_BROKEN.
 * After some megabytes it returns 0 as well, to let other connections have their turn. No system call is made where it is known that
 * nothing has come. */
ssize_t connection_read(Connection *connection, void *to, size_t size);
/* The same of a plain unix socket, with a descriptor that came with it, which is the caller's; -1: none. More than one breaks the connection. */
ssize_t connection_read_descriptor(Connection *connection, void *to, size_t size, int *descriptor);
/* Whether something may have come that has not been read. */
bool connection_has_unread(const Connection *connection);
/* Have `readable` called in the loop's next turn, though nothing may have come since: it was left unread. Any thread. */
void connection_read_later(Connection *connection);

/* Write what the socket takes. Returns how many bytes it took, 0 and fewer than there are: see connection_await_writable; STREAM_BROKEN.
 * With TLS, a thread other than the loop's gets 0: it goes on in `writable`. Any thread. */
ssize_t connection_write(Connection *connection, const struct iovec *parts, int count);
/* Write all: what the socket does not take is copied, and sent before anything that is written later. False: the connection is broken, or the
 * client leaves too much unread (limits_are_unread); it is being closed, and nothing need be done. Any thread. */
bool connection_write_all(Connection *connection, const struct iovec *parts, int count);
/* How many bytes connection_write_all has kept. Any thread. */
size_t connection_unsent(Connection *connection);
/* Have `writable` called, once, in the loop's thread, as soon as the socket takes bytes and nothing is kept. A client that reads nothing
 * for `unsent_ms` is closed. Any thread. */
void connection_await_writable(Connection *connection);

/* Have `timed_out` called after that time, instead of what was set before; 0: never. Cheap enough for each request. */
void connection_set_deadline(Connection *connection, uint64_t after_ms);

/* The last byte has been written: send what is kept, then end the connection such that the client can read all of it, also if it is still
 * sending. `readable`, `writable`, `timed_out` are called no more. Any thread. */
void connection_finish(Connection *connection);
/* End it at once; what is kept is lost. Any thread. */
void connection_abort(Connection *connection);
/* Count a refusal and end the connection at once. Any thread. */
void connection_refuse(Connection *connection, Refusal refusal);
/* Whether it is over, or about to be: nothing that is written will arrive. Any thread. */
bool connection_is_over(const Connection *connection);

/* Have `drain` called for all connections of a loop, and for those that it accepts from now on, once they are open. Any thread. */
void connections_drain(Loop *loop);
/* Have `retire` called for all connections of a loop, and for those that it accepts from now on, once they are open. Any thread. */
void connections_retire(Loop *loop);
/* End all connections of a loop at once. Any thread. */
void connections_abort(Loop *loop);
/* How many connections there are in this process, whose last reference has not gone: those of admin endpoints do not count. Any thread. */
uint64_t connections_count(void);
/* Connections that were accepted since the start. Any thread. */
uint64_t connections_accepted(void);
/* Wait until there are none, at most so long; whether that is so. Any thread but a loop's. */
bool connections_wait(uint64_t most_ms);

#endif
