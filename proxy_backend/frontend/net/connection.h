/* A client's connection: its life, its limits, and the callbacks of its protocol.
 *
 *     accepted ▶ (TLS: handshake) ▶ `opened` ▶ `readable`, `writable`, `timed_out`, `hung_up`, `drain` ▶ `closed` ▶ `freed`
 *
 * References. The loop holds one until `closed`. A call that will answer on a connection holds one, so it can write at
 * any time; writing to a connection that is over has no effect. The descriptor stays open until the last reference is
 * dropped, so that nothing can be written to another client's connection.
 *
 * Threads. Functions that any thread may call say so. All others, and all callbacks except `freed`, belong to the
 * loop's thread. Writers hold a lock of the connection during the system call. The protocol has to ensure the order of
 * what is written.
 *
 * Deadline. There is one deadline, which is for the protocol. It belongs to the loop, so an answer that is written in
 * another thread cannot change it. Therefore, a protocol leaves it set while a request is in the core, and `timed_out`
 * checks whether the connection has really been idle for that long.
 */
#ifndef PYTRITON_FRONTEND_NET_CONNECTION_H
#define PYTRITON_FRONTEND_NET_CONNECTION_H

#include "net/limits.h"
#include "net/loop.h"
#include "net/stream.h"

typedef struct Connection Connection;

typedef struct {
    const char *name; /* "http" or "grpc", for logs and metrics */
    const char *alpn; /* "http/1.1" or "h2" */
    size_t size;      /* size of its state in each connection, which is zeroed at first */
    /* Returns the bytes to send to a client that is refused because there are too many connections. May be NULL. */
    Slice (*refusal)(Refusal refusal);
    /* The connection can be read and written, and TLS has been negotiated. `readable` is called when data has arrived.
     */
    void (*opened)(Connection *connection);
    /* Data may have arrived. Read until connection_read returns 0, or stop earlier and call connection_read_later. */
    void (*readable)(Connection *connection);
    /* The socket accepts data again, as requested by connection_await_writable. */
    void (*writable)(Connection *connection);
    /* The deadline has passed, and is not set any more. */
    void (*timed_out)(Connection *connection);
    /* The client will not send any more but may still read. With `gone`, nothing can be sent to it either. Called at
     * most once for each. May be NULL if the protocol notices when it reads.
     */
    void (*hung_up)(Connection *connection, bool gone);
    /* The server is about to end. Announce this to the client, answer pending requests, then call connection_finish. A
     * client may already have sent a request that has not arrived yet. So an idle one is notified with its next
     * answer, or its connection is closed after some time.
     */
    void (*drain)(Connection *connection);
    /* The connection is over for any reason: cancel its requests. Called once by the loop itself, never from within
     * another function.
     */
    void (*closed)(Connection *connection);
    /* The last reference was dropped: free what the state points to. Any thread. May be NULL. */
    void (*freed)(Connection *connection);
    /* Another process replaces this one. Hand over the connection when it has no request in flight
     * (connection_hand_over), or make the client close it without losing a request. Until then, serve it as before.
     * NULL if the connection does not keep the process alive.
     */
    void (*retire)(Connection *connection);
} Protocol;

/* What listeners in all loops have in common. Must outlive its connections. */
typedef struct Endpoint {
    int fd; /* a bound and listening socket, or -1 if connections come from connection_share */
    const Protocol *protocol;
    void *service; /* for the protocol */
    const Tls *tls;
    const Limits *limits;
    bool is_admin; /* the dispatcher's private endpoint, to which no restrictions or connection limits apply */
    bool is_shared; /* other processes have its connections, too: end one only if its client does not read */
    /* for connections that are handed over on a connection of this endpoint (relay.h), or NULL */
    const struct Endpoint *relays;
} Endpoint;

/* Create a connection from a socket that another process shares and keeps. Always takes ownership of the descriptor.
 * The endpoint is `is_shared`. Returns NULL without memory, or if the socket cannot be watched.
 */
Connection *connection_share(Loop *loop, const Endpoint *endpoint, int fd);

/* Create a connection from a client's connection that another process hands over. Always takes ownership of the
 * descriptor. Connection limits do not apply, because the connection exists already. Only in the loop's thread.
 * Returns NULL without memory, or if the connection has ended.
 */
Connection *connection_adopt(Loop *loop, const Endpoint *endpoint, int fd);
/* Returns whether another process had the connection before. Requests may have been answered on it. */
bool connection_is_adopted(const Connection *connection);
/* Hand over the connection to another process. `take` is called with its descriptor, and returns whether that process
 * now has it. The connection is then over in this process, unnoticed by the client. It must not have a request in
 * flight. Returns false if `take` does, if the connection is encrypted, or if data remains to be sent.
 */
bool connection_hand_over(
    Connection *connection, bool (*take)(void *user, const Endpoint *endpoint, int fd), void *user);

/* Returns the protocol's state. */
void *connection_state(Connection *connection);
/* Returns the connection that a protocol's state belongs to. */
Connection *connection_of(void *state);
Loop *connection_loop(const Connection *connection);
const Endpoint *connection_endpoint(const Connection *connection);
/* Write the client's address, such as "127.0.0.1:3456" or "unix:". Returns `text`. */
enum { CONNECTION_PEER = 64 };
const char *connection_peer(const Connection *connection, char text[CONNECTION_PEER]);
/* Returns the port that the client has connected to if it is on a loopback address, otherwise 0. */
uint16_t connection_loopback_port(const Connection *connection);
/* Returns whether the connection uses TLS. */
bool connection_is_tls(const Connection *connection);
/* Returns whether the client is certainly on this machine (a unix socket). `hung_up` then reports immediately that it
 * has disconnected.
 */
bool connection_is_local(const Connection *connection);

/* Any thread. */
Connection *connection_ref(Connection *connection);
void connection_unref(Connection *connection);

/* Read up to `size` bytes. Returns 0 if there are none at the moment; `readable` will be called. Also returns 0 after
 * some megabytes, so that other connections get their turn. Returns STREAM_END or STREAM_BROKEN at the end. Makes no
 * system call if nothing has arrived.
 */
ssize_t connection_read(Connection *connection, void *to, size_t size);
/* Read a byte from a plain unix socket. `descriptor` receives a descriptor that came with it, which the caller then
 * owns, or -1. More than one breaks the connection.
 */
ssize_t connection_read_descriptor(Connection *connection, void *to, int *descriptor);
/* Returns whether there may be unread data. */
bool connection_has_unread(const Connection *connection);
/* Call `readable` in the loop's next turn, because data was left unread. Any thread. */
void connection_read_later(Connection *connection);

/* Write what the socket accepts. Returns the number of bytes, or STREAM_BROKEN. If it is less than given, call
 * connection_await_writable. With TLS, threads other than the loop's always get 0, and continue in `writable`. Any
 * thread.
 */
ssize_t connection_write(Connection *connection, const struct iovec *parts, int count);
/* Write everything. What the socket does not accept is copied, and sent before anything that is written later. Returns
 * false if the connection is broken or the client leaves too much unread (limits_are_unread). The connection is then
 * being closed, and the caller need not do anything. Any thread.
 */
bool connection_write_all(Connection *connection, const struct iovec *parts, int count);
/* Returns the number of bytes that connection_write_all has buffered. Any thread. */
size_t connection_unsent(Connection *connection);
/* Call `writable` once, in the loop's thread, when the socket accepts data and nothing is buffered. A client that
 * reads nothing for `unsent_ms` is disconnected. Any thread.
 */
void connection_await_writable(Connection *connection);

/* Call `timed_out` after `after_ms`, or never if it is 0. Replaces the previous deadline. Fast enough for each
 * request.
 */
void connection_set_deadline(Connection *connection, uint64_t after_ms);

/* Everything has been written. Send buffered data, then end the connection so that the client can read all of it even
 * if it is still sending. `readable`, `writable` and `timed_out` are not called any more. Any thread.
 */
void connection_finish(Connection *connection);
/* End the connection immediately, dropping buffered data. Any thread. */
void connection_abort(Connection *connection);
/* Count a refusal, and end the connection immediately. Any thread. */
void connection_refuse(Connection *connection, Refusal refusal);
/* Returns whether the connection is over or about to end, so that nothing written from now on will arrive. Any thread.
 */
bool connection_is_over(const Connection *connection);

/* Call `drain` for all connections of a loop, and for later ones when they are open. Any thread. */
void connections_drain(Loop *loop);
/* Call `retire` for all connections of a loop, and for later ones when they are open. Any thread. */
void connections_retire(Loop *loop);
/* End all connections of a loop immediately. Any thread. */
void connections_abort(Loop *loop);
/* Returns the number of connections in this process that still have references, except those of admin endpoints. Any
 * thread.
 */
uint64_t connections_count(void);
/* Returns the number of connections that have been accepted since the start. Any thread. */
uint64_t connections_accepted(void);
/* Wait until there are no connections, for at most `max_ms`. Returns whether there are none. Not in a loop's thread. */
bool connections_wait(uint64_t max_ms);

#endif
