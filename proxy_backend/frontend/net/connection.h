/* One client's connection: its life, its limits, and the callbacks of its protocol.
 *
 * Its life: accepted ▶ (TLS: handshake) ▶ `opened` ▶ `readable`, `writable`, `timed_out`, `hung_up`, `drain` ▶ `closed` ▶ `freed`.
 *
 * References. The loop holds one until `closed`. A call that will answer on a connection holds one, and so may write at
 * any time; writing to a connection that is gone does nothing. The socket's descriptor stays open until the last reference
 * is dropped, so that nothing is ever written to another connection.
 *
 * Threads. Functions that any thread may call say so; all others, and all of the protocol's functions but `freed`, are for
 * the loop's thread. Writers hold a lock of the connection during the system call; the protocol ensures the order of the
 * bytes.
 *
 * Time. There is one deadline for the protocol, which the loop owns: an answer that is written in another thread cannot
 * change it. So a protocol leaves it set while a request is in the core, and checks in `timed_out` whether the connection
 * has really been idle for that long.
 */
#ifndef PYTRITON_FRONTEND_NET_CONNECTION_H
#define PYTRITON_FRONTEND_NET_CONNECTION_H

#include "net/limits.h"
#include "net/loop.h"
#include "net/stream.h"

typedef struct Connection Connection;

typedef struct {
    const char *name; /* "http", "grpc": in logs and metrics */
    const char *alpn; /* "http/1.1", "h2" */
    size_t size;      /* of its state per connection, which is zero at first */
    /* Returns the bytes for a client that is refused because there are too many connections, before its connection is
     * closed; NULL: none.
     */
    Slice (*refusal)(Refusal refusal);
    /* The connection can be read and written: TLS has been negotiated. `readable` follows when data has arrived. */
    void (*opened)(Connection *connection);
    /* Data may have arrived: read until connection_read returns no more bytes, or stop and call connection_read_later
     * later.
     */
    void (*readable)(Connection *connection);
    /* The answer to connection_await_writable. */
    void (*writable)(Connection *connection);
    /* The deadline has passed; it is no longer set. */
    void (*timed_out)(Connection *connection);
    /* The client will send no more (it may still read), or with `gone`: nothing can be sent to it either. Once each.
     * NULL: reading detects that.
     */
    void (*hung_up)(Connection *connection, bool gone);
    /* The server is about to end: announce that to the client, answer pending requests, then call connection_finish.
     * A client may have sent a request that has not arrived yet, so an idle one is notified with its next answer, or
     * closed a while later.
     */
    void (*drain)(Connection *connection);
    /* The connection is over, for whatever reason: cancel its requests. Called once, by the loop itself and never
     * from within another function.
     */
    void (*closed)(Connection *connection);
    /* The last reference is gone: free the contents of connection_state. Any thread. NULL: nothing to do. */
    void (*freed)(Connection *connection);
    /* Another process replaces this one. Hand the connection over once it has no request in flight
     * (connection_hand_over), or make its client leave without losing a request; until then it is served as before.
     * NULL: the connection does not keep the process alive.
     */
    void (*retire)(Connection *connection);
} Protocol;

/* A listener for all loops. It must exist as long as there are connections. */
typedef struct Endpoint {
    int fd; /* bound and listening; -1: its connections come through connection_share */
    const Protocol *protocol;
    void *service; /* the protocol's */
    const Tls *tls;
    const Limits *limits;
    bool is_admin; /* the dispatcher's private one: no restrictions or connection limits apply */
    bool is_shared; /* other processes have its connections, too: end them only if the client does not read */
    const struct Endpoint *relays; /* accepts connections handed over on this one, see relay.h; NULL: none */
} Endpoint;

/* Create a connection from a socket that another process shares and keeps; it is taken over in any case. The endpoint
 * `is_shared`. NULL: it cannot be watched, or there is no memory, and it has been closed.
 */
Connection *connection_share(Loop *loop, const Endpoint *endpoint, int fd);

/* Create a connection from a client's connection that another process hands over; the descriptor is taken over in any
 * case. Connection limits do not apply, since it exists already. In the loop's thread. NULL without memory, or it has
 * ended.
 */
Connection *connection_adopt(Loop *loop, const Endpoint *endpoint, int fd);
/* Returns whether it was adopted. Requests may have been answered on it. */
bool connection_is_adopted(const Connection *connection);
/* Hand the connection over to another process: `take` is called with its descriptor, and returns whether that process
 * has it. Then it is over here; its client does not notice. The protocol must have no request in flight. Returns
 * false if `take` does, if it is encrypted, or if data is still to be sent.
 */
bool connection_hand_over(
    Connection *connection, bool (*take)(void *user, const Endpoint *endpoint, int fd), void *user);

/* Returns the protocol's state: `size` bytes. */
void *connection_state(Connection *connection);
/* The inverse. */
Connection *connection_of(void *state);
Loop *connection_loop(const Connection *connection);
const Endpoint *connection_endpoint(const Connection *connection);
/* Write the client's address, such as "127.0.0.1:3456" or "unix:", and NUL; returns `text`. */
enum { CONNECTION_PEER = 64 };
const char *connection_peer(const Connection *connection, char text[CONNECTION_PEER]);
/* Returns the port that the client has connected to, if at a loopback address; else 0. */
uint16_t connection_loopback_port(const Connection *connection);
/* Returns whether a client's certificate was requested and verified. */
bool connection_is_tls(const Connection *connection);
/* Returns whether it is known to be local (a unix socket): `hung_up` then reports immediately that the client has
 * disconnected.
 */
bool connection_is_local(const Connection *connection);

/* Any thread. */
Connection *connection_ref(Connection *connection);
void connection_unref(Connection *connection);

/* Read available data, at most `size` bytes. Returns 0: nothing for now, `readable` will be called; STREAM_END;
 * STREAM_BROKEN. Also returns 0 after some megabytes, to give other connections their turn. Makes no system call if
 * nothing has arrived.
 */
ssize_t connection_read(Connection *connection, void *to, size_t size);
/* Read from a plain unix socket, with a received descriptor, which the caller owns; -1: none. More than one breaks
 * the connection.
 */
ssize_t connection_read_descriptor(Connection *connection, void *to, size_t size, int *descriptor);
/* Returns whether unread data may have arrived. */
bool connection_has_unread(const Connection *connection);
/* Call `readable` in the loop's next turn, although nothing may have arrived since: some data was left unread. Any
 * thread.
 */
void connection_read_later(Connection *connection);

/* Write what the socket takes. Returns the number of bytes taken; if that is less than given, see
 * connection_await_writable; STREAM_BROKEN. With TLS, a thread other than the loop's gets 0: writing continues in
 * `writable`. Any thread.
 */
ssize_t connection_write(Connection *connection, const struct iovec *parts, int count);
/* Write everything: data that the socket does not take is copied, and sent before anything written later. Returns
 * false if the connection is broken, or the client leaves too much unread (limits_are_unread); it is being closed,
 * and the caller need not do anything. Any thread.
 */
bool connection_write_all(Connection *connection, const struct iovec *parts, int count);
/* Returns how many bytes connection_write_all has buffered. Any thread. */
size_t connection_unsent(Connection *connection);
/* Call `writable` once in the loop's thread as soon as the socket takes bytes and nothing is buffered. A client that
 * reads nothing for `unsent_ms` is closed. Any thread.
 */
void connection_await_writable(Connection *connection);

/* Call `timed_out` after this time, replacing an earlier deadline; 0: never. Fast enough for each request. */
void connection_set_deadline(Connection *connection, uint64_t after_ms);

/* The last byte has been written: send buffered data, then end the connection such that the client can read all of
 * it, even if it is still sending. `readable`, `writable`, `timed_out` are no longer called. Any thread.
 */
void connection_finish(Connection *connection);
/* End it immediately; buffered data is lost. Any thread. */
void connection_abort(Connection *connection);
/* Count a refusal and end the connection immediately. Any thread. */
void connection_refuse(Connection *connection, Refusal refusal);
/* Returns whether it is over, or about to be: nothing that is written will arrive. Any thread. */
bool connection_is_over(const Connection *connection);

/* Call `drain` for all connections of a loop, and for those that it accepts later, once they are open. Any thread. */
void connections_drain(Loop *loop);
/* Call `retire` for all connections of a loop, and for those that it accepts later, once they are open. Any thread. */
void connections_retire(Loop *loop);
/* End all connections of a loop immediately. Any thread. */
void connections_abort(Loop *loop);
/* Returns the number of connections in this process whose last reference is not gone, except those of admin
 * endpoints. Any thread.
 */
uint64_t connections_count(void);
/* Returns the number of connections accepted since the start. Any thread. */
uint64_t connections_accepted(void);
/* Wait until there are none, at most this long; returns whether that is so. Any thread but a loop's. */
bool connections_wait(uint64_t max_ms);

#endif
