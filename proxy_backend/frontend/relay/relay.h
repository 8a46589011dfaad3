/* Writes the events of a stream to the client of another process, which hands over the connection until the stream ends.
 *
 * This other process, the *requester*, requests the stream on a unix socket of this server. It sends its client the head
 * of the answer and the first event. Then it hands over the connection, and sleeps while this server sends the events:
 *
 *     requester ── request ────────────────────────▶ server
 *           ◀── first event ─────────────────────   the next ones wait here
 *           ── 'g' with the client's descriptor ─▶   or 'n': all events go to the requester
 *                                   client ◀── events, each as a chunk of HTTP/1.1
 *           ◀── "slow" ──────────────────────────   a chunk was written only in part: until the end, only this server knows where a chunk ends
 *           ── 's' ──────────────────────────────▶   return the connection before the stream ends, e.g. because the client has disconnected
 *           ◀── "relayed: COUNT" ────────────────   the connection is returned, after this number of complete events
 *           ◀── "lost: COUNT" ───────────────────   the client does not read, and the last event is incomplete: the connection must be closed
 *           ◀── what is not an event, the end ───   as usual
 *
 * So only one process writes to the client at any time: this server does from the receipt of the descriptor until it
 * sends "relayed" or "lost", after the last byte.
 *
 * After the answer, the requester may send its next request on the same connection. If the stream has ended before 'g' or
 * 'n' arrived, it precedes the request and is dropped, with its descriptor.
 *
 * Unread data has the same limits as on the server's own connections (limits.h). The server closes the descriptor when
 * the stream ends, the client does not read, the requester closes its connection, or the server ends.
 */
#ifndef PYTRITON_FRONTEND_RELAY_H
#define PYTRITON_FRONTEND_RELAY_H

#include "net/connection.h"

typedef struct Relay Relay;

/* Callbacks of the stream's owner, called with the relay's lock held. `user` must stay valid until relay_end has
 * returned true, or `ended` has been called.
 */
typedef struct {
    /* Send to the requester. Returns false if the requester does not read any more. */
    bool (*send)(void *user, Slice piece);
    /* Cancel the stream, because nobody reads it. */
    void (*cancel)(void *user);
    /* The answer can end now, see relay_end. Called without the lock. */
    void (*ended)(void *user);
} RelayOwner;

/* The protocol of an endpoint's `relays`. */
extern const Protocol relay_protocol;

/* Create the relay of a stream. A client that has received nothing for `pulse_ms` (0 means never) gets a comment.
 * Returns NULL without memory.
 */
Relay *relay_new(const RelayOwner *owner, void *user, uint64_t pulse_ms);
Relay *relay_ref(Relay *relay);
void relay_unref(Relay *relay);

/* ── the stream, in any thread, one call after the other ──────────────────────────────────────────────────── */

/* Send events to the client. Returns false if they must go to the requester, with relay_send_to_requester. */
bool relay_accept_events(Relay *relay, Slice events);
/* Send data to the requester, after everything that goes to the client. Returns false if nobody reads it. */
bool relay_send_to_requester(Relay *relay, Slice piece);
/* The stream has ended. Returns false if the client has not read all of it yet; `ended` is called when it has, or
 * never will.
 */
bool relay_end(Relay *relay);

/* ── the requester's connection, in its loop's thread ─────────────────────────────────────────────────────────── */

/* Read the requester's messages. */
void relay_readable(Relay *relay, Connection *requester);
/* Returns whether the requester may still send 'g' or 'n', although the stream has ended. Its next request follows. */
bool relay_may_get_reply(Relay *relay);
/* The requester has closed its connection. */
void relay_gone(Relay *relay);

#endif
