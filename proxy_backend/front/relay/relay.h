/* The events of a stream, written to a client whose connection another process has, and hands over for as long as the stream lasts.
 *
 * That process, the *asker*, asks for the stream on a unix socket of this server's own. It sends the first event to its client itself, as it sent the
 * head of the answer. Then it hands the connection over; from now on the events go to the client from here, and the asker sleeps:
 *
 *     asker ── request ────────────────────────▶ server
 *           ◀── first event ─────────────────────   the next ones wait here
 *           ── 'g' with the client's descriptor ─▶   or 'n': they all go to the asker
 *                                   client ◀── events, each as a chunk of HTTP/1.1
 *           ◀── "slow" ──────────────────────────   a chunk was not taken as a whole: until the end, nobody but this server knows where one ends
 *           ── 's' ──────────────────────────────▶   to have the connection back before the stream ends, such as when the client has gone
 *           ◀── "relayed: COUNT" ────────────────   the asker has it back: so many events have been written, and all of each
 *           ◀── "lost: COUNT" ───────────────────   or not all, as the client does not read: only the connection's end is left
 *           ◀── what is not an event, the end ───   as without all this
 *
 * So one process writes at a time. The server writes from the descriptor on until it says "relayed" or "lost", which come after the last byte.
 * While it writes, the asker does not.
 *
 * What a client leaves unread has the same limits as on a connection of the server's own (limits.h). The descriptor goes when the stream ends, when the
 * client does not read, when the asker hangs up, and when the server ends: whichever comes first.
 */
#ifndef PYTRITON_FRONT_RELAY_H
#define PYTRITON_FRONT_RELAY_H

#include "net/connection.h"

typedef struct Relay Relay;

/* What the relay calls, with its lock held; `user` stays until relay_end has returned true, or `ended` is called. */
typedef struct {
    /* Send to the asker; false: it does not read any more. */
    bool (*send)(void *user, Slice piece);
    /* Nobody reads the stream. */
    void (*cancel)(void *user);
    /* Not with the lock: the answer may end, see relay_end. */
    void (*ended)(void *user);
} RelayOwner;

/* Of an endpoint's `relays`. */
extern const Protocol relay_protocol;

/* One for each stream. A client that gets nothing for `pulse_ms` gets a comment; 0: none. NULL: there is no memory. */
Relay *relay_new(const RelayOwner *owner, void *user, uint64_t pulse_ms);
Relay *relay_ref(Relay *relay);
void relay_unref(Relay *relay);

/* ── the stream, in any thread, one call after the other ──────────────────────────────────────────────────── */

/* Give events to the client. False: they are to go to the asker, by relay_tell. */
bool relay_takes(Relay *relay, Slice events);
/* Send to the asker, behind everything that has been given to the client. False: nobody reads any more. */
bool relay_tell(Relay *relay, Slice piece);
/* The stream has ended. False: the client has not read all of it; `ended` is called when it has, or will not. */
bool relay_end(Relay *relay);

/* ── the asker's connection, in its loop's thread ─────────────────────────────────────────────────────────── */

/* Read what the asker says. */
void relay_readable(Relay *relay, Connection *asker);
/* The asker has hung up. */
void relay_gone(Relay *relay);

#endif
