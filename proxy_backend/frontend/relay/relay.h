/* Writes the events of a stream to the client of another process, which hands the connection over until the stream ends.
 *
 * That process, the *requester*, requests the stream on a unix socket of this server. It sends the head of the answer and the
 * first event to its client. Then it hands the connection over; from then on, this server sends the events to the client,
 * and the requester sleeps:
 *
 *     requester ── request ────────────────────────▶ server
 *           ◀── first event ─────────────────────   the next ones wait here
 *           ── 'g' with the client's descriptor ─▶   or 'n': they all go to the requester
 *                                   client ◀── events, each as a chunk of HTTP/1.1
 *           ◀── "slow" ──────────────────────────   a chunk was taken only in part: until the end, only this server knows the chunk boundaries
 *           ── 's' ──────────────────────────────▶   return the connection before the stream ends, e.g. when the client has disconnected
 *           ◀── "relayed: COUNT" ────────────────   the requester has it back: this many events have been written completely
 *           ◀── "lost: COUNT" ───────────────────   or incompletely, as the client does not read: the connection can only be closed
 *           ◀── what is not an event, the end ───   as usual
 *
 * So one process writes at a time: the server from the receipt of the descriptor until it sends "relayed" or "lost",
 * which come after the last byte.
 *
 * Unread data has the same limits as on the server's own connections (limits.h). The descriptor is closed when the stream
 * ends, the client does not read, the requester closes its connection, or the server ends: whichever comes first.
 */
#ifndef PYTRITON_FRONTEND_RELAY_H
#define PYTRITON_FRONTEND_RELAY_H

#include "net/connection.h"

typedef struct Relay Relay;

/* The owner's callbacks, called with the relay's lock held; `user` stays until relay_end has returned true, or
 * `ended` is called.
 */
typedef struct {
    /* Send to the requester. Returns false if it does not read any more. */
    bool (*send)(void *user, Slice piece);
    /* The stream has no reader. */
    void (*cancel)(void *user);
    /* Without the lock: the answer may end, see relay_end. */
    void (*ended)(void *user);
} RelayOwner;

/* Of an endpoint's `relays`. */
extern const Protocol relay_protocol;

/* One per stream. A client that gets nothing for `pulse_ms` gets a comment; 0: never. NULL without memory. */
Relay *relay_new(const RelayOwner *owner, void *user, uint64_t pulse_ms);
Relay *relay_ref(Relay *relay);
void relay_unref(Relay *relay);

/* ── the stream, in any thread, one call after the other ──────────────────────────────────────────────────── */

/* Pass events to the client. Returns false if they must go to the requester, with relay_send_to_requester. */
bool relay_accept_events(Relay *relay, Slice events);
/* Send to the requester, after everything passed to the client. Returns false if it has no reader. */
bool relay_send_to_requester(Relay *relay, Slice piece);
/* The stream has ended. Returns false if the client has not read all of it; `ended` is called when it has, or will
 * not.
 */
bool relay_end(Relay *relay);

/* ── the requester's connection, in its loop's thread ─────────────────────────────────────────────────────────── */

/* Read the requester's messages. */
void relay_readable(Relay *relay, Connection *requester);
/* The requester has closed its connection. */
void relay_gone(Relay *relay);

#endif
