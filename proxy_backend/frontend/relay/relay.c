#define _GNU_SOURCE
#include "relay/relay.h"

#include "common/clock.h"
#include "common/buffer.h"
#include "common/json_writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_WAITING_BYTES = 1 << 20
}; /* maximum size of events that wait for the requester's reply; others go to the requester */

typedef enum {
    RELAY_BEFORE_FIRST, /* the requester gets everything up to and including the first event */
    RELAY_WAITS, /* waits for the requester's reply */
    RELAY_WRITES,
    RELAY_ENDS, /* the requester gets the rest when the client has read what was written */
    RELAY_OVER, /* the requester gets everything */
} RelayState;

struct Relay {
    atomic_uint references;
    const RelayOwner *owner;
    void *user;
    uint64_t pulse_ms;
    /* Guards the fields below. `user` is valid until the state is RELAY_OVER. */
    pthread_mutex_t lock;
    RelayState state;
    Connection *client; /* a reference, held while the relay writes or ends */
    Buffer waiting; /* events that wait */
    Buffer rest; /* in RELAY_ENDS: data for the requester */
    uint64_t count, wrote_ms;
    bool begun; /* the first event is about to go to the requester */
    bool replied; /* the requester has sent 'g' or 'n' */
    bool failed; /* something could not be written to the client */
    bool reported_slow, is_last; /* `is_last`: relay_end was called, and `ended` has to be called */
};

/* The state of a client's connection: a reference to the relay. */
typedef struct {
    Relay *relay;
} RelayedClient;

Relay *relay_new(const RelayOwner *owner, void *user, uint64_t pulse_ms)
{
    Relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL)
        return NULL;
    atomic_init(&relay->references, 1);
    pthread_mutex_init(&relay->lock, NULL);
    relay->owner = owner;
    relay->user = user;
    relay->pulse_ms = pulse_ms;
    return relay;
}

Relay *relay_ref(Relay *relay)
{
    atomic_fetch_add_explicit(&relay->references, 1, memory_order_relaxed);
    return relay;
}

void relay_unref(Relay *relay)
{
    if (atomic_fetch_sub_explicit(&relay->references, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&relay->lock);
    buffer_free(&relay->waiting);
    buffer_free(&relay->rest);
    free(relay);
}

/* ── all with the lock held ───────────────────────────────────────────────────────────────────────────────── */

static bool send_to_requester(Relay *relay, Slice piece)
{
    return piece.size == 0 || relay->owner->send(relay->user, piece);
}

static uint64_t count_events(Slice events)
{
    uint64_t count = 0;
    for (const char *at = events.start, *end = events.start + events.size;
        (at = memmem(at, (size_t)(end - at), "\n\n", 2)) != NULL; at += 2)
        count++;
    return count;
}

/* Write a chunk to the client. */
static void write_chunk(Relay *relay, Slice data)
{
    char size[24];
    struct iovec parts[] = {{size, (size_t)snprintf(size, sizeof size, "%zx\r\n", data.size)},
        {(char *)(uintptr_t)data.start, data.size}, {(char[]){'\r', '\n'}, 2}};
    if (data.size == 0)
        return;
    relay->wrote_ms = clock_ms();
    relay->failed |= !connection_write_all(relay->client, parts, 3);
    if (relay->reported_slow || (!relay->failed && connection_unsent(relay->client) == 0))
        return;
    relay->reported_slow = true;
    send_to_requester(relay, SLICE("slow\n\n"));
}

static void write_events(Relay *relay, Slice events)
{
    relay->count += count_events(events);
    write_chunk(relay, events);
}

/* Send the events that waited for the requester's reply to the requester instead. */
static bool send_waiting(Relay *relay)
{
    Buffer text = {0};
    bool sent = !relay->waiting.failed;
    if (sent && relay->waiting.size) {
        buffer_put_string(&text, "data: {\"text_output\":");
        json_put_sanitized(&text, buffer_slice(&relay->waiting));
        buffer_put_string(&text, "}\n\n");
        sent = !text.failed && send_to_requester(relay, buffer_slice(&text));
    }
    buffer_free(&text);
    buffer_reset(&relay->waiting, 0);
    relay->state = RELAY_OVER;
    return sent;
}

/* Give the client's connection back to the requester, in one message with `last`. `requester_reads` means that the
 * requester still reads. Returns whether the answer ends with this.
 */
static bool return_client(Relay *relay, bool requester_reads, Slice last)
{
    Buffer said = {0};
    bool lost = relay->failed || connection_unsent(relay->client) > 0;
    buffer_format(&said, lost ? "lost: %llu\n\n" : "relayed: %llu\n\n", (unsigned long long)relay->count);
    buffer_put_slice(&said, buffer_slice(&relay->rest));
    buffer_put_slice(&said, last);
    connection_abort(relay->client); /* Does not close the client's connection, since the requester has it, too. */
    connection_unref(relay->client);
    relay->client = NULL;
    /* Without memory, or if the requester is gone, cancel the stream. A requester that still reads then gets the end of
     * the answer without this message.
     */
    if (requester_reads && (said.failed || !send_to_requester(relay, buffer_slice(&said))))
        relay->owner->cancel(relay->user);
    buffer_free(&said);
    relay->state = RELAY_OVER;
    return relay->is_last;
}

/* Give the connection back as soon as the client has read everything, followed by `last`. */
static void return_client_later(Relay *relay, Slice last)
{
    if (relay->failed || connection_unsent(relay->client) == 0) {
        return_client(relay, true, last);
        return;
    }
    relay->state = RELAY_ENDS;
    buffer_put_slice(&relay->rest, last);
    connection_await_writable(relay->client);
}

/* ── the stream ───────────────────────────────────────────────────────────────────────────────────────────── */

bool relay_accept_events(Relay *relay, Slice events)
{
    bool taken = false;
    pthread_mutex_lock(&relay->lock);
    if (relay->state == RELAY_BEFORE_FIRST) {
        relay->begun = events.size > 0;
    } else if (relay->state == RELAY_WAITS) {
        if (relay->waiting.size == 0)
            buffer_put_char(&relay->waiting, 's');
        buffer_put_slice(&relay->waiting, events);
        taken = !relay->waiting.failed && (relay->waiting.size <= MAX_WAITING_BYTES || send_waiting(relay));
        if (!taken)
            relay->owner->cancel(relay->user);
    } else if (relay->state == RELAY_WRITES) {
        write_events(relay, events);
        taken = true;
    }
    pthread_mutex_unlock(&relay->lock);
    return taken;
}

bool relay_send_to_requester(Relay *relay, Slice piece)
{
    bool good = true;
    pthread_mutex_lock(&relay->lock);
    if (relay->state == RELAY_WRITES) {
        return_client_later(relay, piece);
        good = !relay->rest.failed;
    } else if (relay->state == RELAY_ENDS) {
        buffer_put_slice(&relay->rest, piece);
        good = !relay->rest.failed;
    } else {
        good = (relay->state != RELAY_WAITS || send_waiting(relay)) && send_to_requester(relay, piece);
    }
    if (relay->state == RELAY_BEFORE_FIRST && relay->begun)
        relay->state = RELAY_WAITS;
    pthread_mutex_unlock(&relay->lock);
    return good;
}

bool relay_end(Relay *relay)
{
    relay_ref(relay); /* The owner may drop its reference in this call. */
    pthread_mutex_lock(&relay->lock);
    if (relay->state == RELAY_WAITS)
        send_waiting(relay);
    else if (relay->state == RELAY_WRITES)
        return_client_later(relay, SLICE(""));
    bool ends = relay->state != RELAY_ENDS;
    if (ends)
        relay->state = RELAY_OVER;
    relay->is_last = true;
    pthread_mutex_unlock(&relay->lock);
    relay_unref(relay);
    return ends;
}

/* ── messages from the requester ──────────────────────────────────────────────────────────────────────────────── */

static bool is_client(int fd)
{
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    struct sockaddr_storage peer;
    socklen_t peer_size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens &&
        getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0;
}

/* Begin to write to a client. Takes ownership of the descriptor. Returns false if it is not a client's connection. The
 * caller holds the lock.
 */
static bool begin(Relay *relay, const Connection *requester, int fd)
{
    if (!is_client(fd)) {
        close(fd);
        return false;
    }
    Connection *client = connection_share(connection_loop(requester), connection_endpoint(requester)->relays, fd);
    if (client == NULL)
        return false;
    ((RelayedClient *)connection_state(client))->relay = relay_ref(relay);
    relay->client = connection_ref(client);
    relay->state = RELAY_WRITES;
    relay->wrote_ms = clock_ms();
    if (relay->waiting.size)
        write_events(relay, slice_after(buffer_slice(&relay->waiting), 1));
    buffer_reset(&relay->waiting, 0);
    connection_set_deadline(client, relay->pulse_ms);
    return true;
}

/* Handle the messages "g" and "n": whether the client's connection is handed over. */
static void handle_word(Relay *relay, const Connection *requester, int fd)
{
    pthread_mutex_lock(&relay->lock);
    if (relay->state != RELAY_WAITS) {
        if (fd >= 0)
            close(fd);
    } else if (fd < 0 || !begin(relay, requester, fd)) {
        send_waiting(relay);
    }
    pthread_mutex_unlock(&relay->lock);
}

static void stop(Relay *relay, bool requester_reads)
{
    bool ends = false;
    pthread_mutex_lock(&relay->lock);
    if (relay->client)
        ends = return_client(relay, requester_reads, SLICE(""));
    else if (relay->state == RELAY_WAITS && requester_reads)
        send_waiting(relay);
    else
        relay->state = RELAY_OVER;
    pthread_mutex_unlock(&relay->lock);
    if (ends)
        relay->owner->ended(relay->user);
}

/* Read a message. After the end of the stream, the requester sends its next request, so this reads with the lock held. */
static bool read_word(Relay *relay, Connection *requester, char *word, int *fd)
{
    pthread_mutex_lock(&relay->lock);
    bool is_over = relay->is_last && relay->state == RELAY_OVER;
    bool found = !is_over && connection_read_descriptor(requester, word, fd) > 0;
    relay->replied |= found && (*word == 'g' || *word == 'n');
    pthread_mutex_unlock(&relay->lock);
    return found;
}

void relay_readable(Relay *relay, Connection *requester)
{
    char word;
    int fd;
    while (read_word(relay, requester, &word, &fd)) {
        if (word == 's')
            stop(relay, true);
        else if (word == 'g' || word == 'n')
            handle_word(relay, requester, word == 'g' ? fd : -1);
        else
            connection_abort(requester);
        if (word != 'g' && fd >= 0)
            close(fd);
    }
}

bool relay_may_get_reply(Relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    bool may_get = relay->begun && !relay->replied;
    pthread_mutex_unlock(&relay->lock);
    return may_get;
}

void relay_gone(Relay *relay)
{
    stop(relay, false);
}

/* ── events of the client's connection ────────────────────────────────────────────────────────────────────── */

static Relay *relay_of(Connection *client)
{
    return ((RelayedClient *)connection_state(client))->relay;
}

/* The connection is handed over after the head of the answer was sent. */
static void opened(Connection *client)
{
    (void)client;
}

/* Nothing to do: the requester reads what the client sends. */
static void readable(Connection *client)
{
    (void)client;
}

static void drain(Connection *client)
{
    (void)client;
}

static void writable(Connection *client)
{
    Relay *relay = relay_of(client);
    bool ends = false;
    pthread_mutex_lock(&relay->lock);
    if (relay->state == RELAY_ENDS && relay->client == client)
        ends = return_client(relay, true, SLICE(""));
    pthread_mutex_unlock(&relay->lock);
    if (ends)
        relay->owner->ended(relay->user);
}

/* Write a comment, because nothing has been written for some time. */
static void timed_out(Connection *client)
{
    Relay *relay = relay_of(client);
    pthread_mutex_lock(&relay->lock);
    if (relay->client == client) {
        uint64_t silent_ms = clock_ms() - relay->wrote_ms;
        if (silent_ms >= relay->pulse_ms && relay->state == RELAY_WRITES && connection_unsent(client) == 0)
            write_chunk(relay, SLICE(": keep-alive\n\n"));
        connection_set_deadline(client, silent_ms < relay->pulse_ms ? relay->pulse_ms - silent_ms : relay->pulse_ms);
    }
    pthread_mutex_unlock(&relay->lock);
}

/* The client has shut down sending, but may still read. One that has closed its socket answers a comment with a reset,
 * after which it is `gone`.
 */
static void hung_up(Connection *client, bool gone)
{
    Relay *relay = relay_of(client);
    pthread_mutex_lock(&relay->lock);
    relay->failed |= gone;
    if (!gone && relay->client == client && relay->state == RELAY_WRITES && connection_unsent(client) == 0)
        write_chunk(relay, SLICE(": still there?\n\n"));
    pthread_mutex_unlock(&relay->lock);
    if (gone)
        connection_abort(client);
}

/* The connection has ended for a reason other than return_client: it is broken, its client does not read, or the
 * server ends.
 */
static void closed(Connection *client)
{
    Relay *relay = relay_of(client);
    bool ends = false;
    pthread_mutex_lock(&relay->lock);
    if (relay->client == client) {
        relay->owner->cancel(relay->user);
        ends = return_client(relay, true, SLICE(""));
    }
    pthread_mutex_unlock(&relay->lock);
    if (ends)
        relay->owner->ended(relay->user);
}

static void freed(Connection *client)
{
    if (relay_of(client))
        relay_unref(relay_of(client));
}

const Protocol relay_protocol = {
    .name = "relay",
    .alpn = "",
    .size = sizeof(RelayedClient),
    .opened = opened,
    .readable = readable,
    .writable = writable,
    .timed_out = timed_out,
    .hung_up = hung_up,
    .drain = drain,
    .closed = closed,
    .freed = freed,
};
