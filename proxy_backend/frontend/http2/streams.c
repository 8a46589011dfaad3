/* Streams and their events, which are delivered to the service after the session's lock was released. */
#include "http2/service.h"
#include "http2/session.h"

#include "common/clock.h"
#include "base/compression.h"

#include <stdlib.h>

enum { MAX_SPARE = 16, KEPT_BYTES = 64 << 10 };
enum { FEW_EVENTS = 16 };
static _Thread_local struct {
    Event few[FEW_EVENTS], *list; /* `list` is NULL while `few` has enough room */
    size_t count, room;
    bool handled; /* a caller further up the stack is handling the events */
} events;

static Event *event_list(void)
{
    return events.list ? events.list : events.few;
}

/* Make room for another event. Returns false without memory. */
static bool grow(void)
{
    size_t room = events.list ? events.room * 2 : (size_t)FEW_EVENTS * 4;
    if (events.count < (events.list ? events.room : FEW_EVENTS))
        return true;
    Event *list = realloc(events.list, room * sizeof *list);
    if (list == NULL)
        return false;
    if (events.list == NULL)
        memcpy(list, events.few, sizeof events.few);
    events.list = list;
    events.room = room;
    return true;
}

bool session_emit(EventKind kind, GrpcStream *stream)
{
    if (!grow())
        return false;
    stream->refs++;
    Event *event = &event_list()[events.count++];
    *event = (Event){.kind = kind, .stream = stream};
    if (kind == EVENT_MESSAGE) {
        event->message = stream->message;
        event->compressed = stream->compressed;
        event->received = stream->received;
        stream->message = (Buffer){0};
        stream->received = 0;
    }
    return true;
}

/* Decompress a message. */
static bool expand(Event *event, uint64_t most, Problem *problem)
{
    Compression compression = event->stream->encoding == GRPC_GZIP ? COMPRESSION_GZIP : COMPRESSION_DEFLATE;
    Buffer whole = {0};
    bool expanded = compression_expand(compression, buffer_slice(&event->message), &whole, most, problem);
    buffer_free(&event->message);
    event->message = whole;
    bodies_release(event->received);
    event->received = 0;
    if (!expanded || !unpacked_reserve(connection_endpoint(event->stream->connection)->limits, whole.size, problem))
        return false;
    event->stream->counted.unpacked = whole.size;
    return true;
}

/* Prepare a message for the service. */
static bool prepare(Event *event, Problem *problem)
{
    uint64_t most = handlers_of(event->stream)->message_bytes(event->stream);
    if (event->message.size > most) {
        refusals_count(REFUSED_BODY_BYTES);
        return problem_set(problem, PROBLEM_TOO_LARGE,
            "a message has %zu bytes, more than this method's maximum of %llu", event->message.size,
            (unsigned long long)most);
    }
    return !event->compressed || expand(event, most, problem);
}

static void refuse(GrpcStream *stream)
{
    grpc_finish_problem(stream, &stream->problem);
    if (stream->service_knows)
        handlers_of(stream)->cancelled(stream);
}

static void handle_message(Event *event, bool deferred)
{
    GrpcStream *stream = event->stream;
    Problem problem = {0};
    if (deferred && grpc_is_over(stream))
        return; /* The call is over. */
    if (!prepare(event, &problem)) {
        grpc_finish_problem(stream, &problem);
        problem_clear(&problem);
        if (stream->service_knows)
            handlers_of(stream)->cancelled(stream);
        return;
    }
    stream->counted.received = event->received;
    event->received = 0;
    handlers_of(stream)->message(stream, &event->message);
    body_release(&stream->counted);
    if (!deferred && stream->message.data == NULL) { /* Leave the memory for the next message. */
        stream->message = event->message;
        event->message = (Buffer){0};
        buffer_reset(&stream->message, KEPT_BYTES);
    }
}

/* Begin a call, unless it is already over: opening and resetting streams must not cause work. */
static void handle_begin(GrpcStream *stream)
{
    Session *session = session_of(stream);
    pthread_mutex_lock(&session->lock);
    stream->service_knows = !stream->closed;
    pthread_mutex_unlock(&session->lock);
    if (stream->service_knows)
        handlers_of(stream)->begin(stream);
}

/* EVENT_CANCELLED may be handled in another thread at the same time as the others. */
static void handle(Event *event, bool deferred)
{
    GrpcStream *stream = event->stream;
    if (event->kind == EVENT_BEGIN)
        handle_begin(stream);
    else if (event->kind == EVENT_REFUSED)
        refuse(stream);
    else if (event->kind == EVENT_CANCELLED)
        handlers_of(stream)->cancelled(stream);
    else if (event->kind == EVENT_MESSAGE && stream->service_knows)
        handle_message(event, deferred);
    else if (event->kind == EVENT_HALF_CLOSED && stream->service_knows)
        handlers_of(stream)->half_closed(stream);
    event_drop(event);
}

void event_drop(Event *event)
{
    buffer_free(&event->message);
    bodies_release(event->received);
    grpc_unref(event->stream);
}

static void handle_events(void)
{
    if (events.handled)
        return;
    events.handled = true;
    for (size_t i = 0; i < events.count; i++) {
        Event event = event_list()[i]; /* The list may grow and move meanwhile. */
        if (!event_defer(&event))
            handle(&event, false);
    }
    free(events.list);
    events.list = NULL;
    events.count = 0;
    events.handled = false;
}

void event_handle(Event *event, bool deferred)
{
    bool handled = events.handled;
    events.handled = true; /* Events that occur meanwhile wait, as in a loop's thread. */
    handle(event, deferred);
    events.handled = handled;
    handle_events();
}

/* Messages of closed streams, which are released after the lock. */
static _Thread_local Outgoing *dropped;

/* ── streams ────────────────────────────────────────────────────────────────────────────────────────── */

GrpcStream *grpc_stream_new(Connection *connection, int32_t id)
{
    Session *session = connection_state(connection);
    GrpcStream *stream = session->spare;
    if (stream) {
        session->spare = stream->next;
        session->spare_count--;
    } else if ((stream = calloc(1, sizeof *stream)) == NULL) {
        return NULL;
    }
    stream->connection = connection_ref(connection);
    stream->id = id;
    stream->refs = 1;
    stream->begun_ms = loop_now_ms(connection_loop(connection));
    stream->last = &stream->first;
    stream->next = session->streams;
    stream->link = &session->streams;
    if (stream->next)
        stream->next->link = &stream->next;
    session->streams = stream;
    session->stream_count++;
    return stream;
}

void grpc_stream_free(GrpcStream *stream)
{
    Session *session = session_of(stream);
    Buffer headers = stream->headers, message = stream->message, trailer = stream->trailer;
    problem_clear(&stream->problem);
    if (stream->service)
        handlers_of(stream)->gone(stream);
    if (session->session == NULL || session->spare_count == MAX_SPARE) {
        buffer_free(&headers);
        buffer_free(&message);
        buffer_free(&trailer);
        free(stream);
        return;
    }
    buffer_reset(&headers, KEPT_BYTES);
    buffer_reset(&message, KEPT_BYTES);
    buffer_reset(&trailer, KEPT_BYTES);
    *stream = (GrpcStream){.headers = headers, .message = message, .trailer = trailer, .next = session->spare};
    session->spare = stream;
    session->spare_count++;
}

GrpcStream *grpc_ref(GrpcStream *stream)
{
    Session *session = session_of(stream);
    pthread_mutex_lock(&session->lock);
    stream->refs++;
    pthread_mutex_unlock(&session->lock);
    return stream;
}

void grpc_unref(GrpcStream *stream)
{
    Connection *connection = stream->connection;
    Session *session = connection_state(connection);
    pthread_mutex_lock(&session->lock);
    bool last = --stream->refs == 0;
    if (last)
        grpc_stream_free(stream);
    pthread_mutex_unlock(&session->lock);
    if (last)
        connection_unref(connection);
}

void session_unlock(Session *session, Outgoing *done)
{
    Outgoing *more = dropped;
    dropped = NULL;
    session_count_unsent(session);
    pthread_mutex_unlock(&session->lock);
    outgoing_done(done);
    outgoing_done(more);
    handle_events();
}

void session_set_receiving(Session *session, GrpcStream *stream, bool receiving)
{
    if (receiving != stream->receiving)
        session->receiving += receiving ? 1 : (size_t)-1;
    stream->receiving = receiving;
}

void grpc_stream_close(GrpcStream *stream)
{
    Session *session = session_of(stream);
    session_set_receiving(session, stream, false);
    bodies_release(stream->received);
    stream->received = 0;
    stream->closed = true;
    *stream->link = stream->next;
    if (stream->next)
        stream->next->link = stream->link;
    session->stream_count--;
    grpc_stream_drop(stream, &dropped);
}

bool grpc_is_over(GrpcStream *stream)
{
    Session *session = session_of(stream);
    pthread_mutex_lock(&session->lock);
    bool over = stream->closed || stream->finishing;
    pthread_mutex_unlock(&session->lock);
    return over;
}

bool grpc_is_draining(GrpcStream *stream)
{
    Session *session = session_of(stream);
    pthread_mutex_lock(&session->lock);
    bool leaving = session->sends_goaway || session->draining || session->retiring;
    pthread_mutex_unlock(&session->lock);
    return leaving;
}

bool grpc_is_unread(GrpcStream *stream)
{
    Session *session = session_of(stream);
    const Limits *limits = connection_endpoint(stream->connection)->limits;
    pthread_mutex_lock(&session->lock);
    size_t unsent = stream->queued + stream->waiting * WAITING_BYTES, newest = stream->newest + WAITING_BYTES;
    size_t before = unsent > newest ? unsent - newest : 0;
    stream->read_progress.bytes = stream->outbound.bytes;
    bool over = stream->closed || stream->finishing;
    bool unread = !over && limits_are_unread(limits, &stream->read_progress, before, clock_ms());
    pthread_mutex_unlock(&session->lock);
    return unread;
}

void grpc_stream_resume(GrpcStream *stream, Outgoing **done)
{
    Session *session = session_of(stream);
    if (stream->paused || stream->deferred || stream->unconsumed == 0 || stream->closed || session->session == NULL)
        return;
    nghttp2.session_consume_stream(session->session, stream->id, stream->unconsumed);
    stream->unconsumed = 0;
    session_push(stream->connection, done);
}

void grpc_set_paused(GrpcStream *stream, bool paused)
{
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    stream->paused = paused;
    grpc_stream_resume(stream, &done);
    session_unlock(session, done);
}
