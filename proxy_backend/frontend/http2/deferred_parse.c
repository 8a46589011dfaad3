/* Messages that take long to read, because they are large or compressed, are read by a reader thread. Later events of
 * their streams wait for them. Meanwhile, the client can send only what the stream's window still allows.
 *
 * A connection uses one reader thread at a time, and for one long message. Then it goes to the end of the readers'
 * queue, and another of its streams has the next turn. So no stream waits for everything that one client has sent.
 */
#include "http2/service.h"
#include "http2/session.h"

#include <stdlib.h>

enum {
    LONG_MESSAGE = 1 << 20, /* bytes */
    LONG_COMPRESSED = 256, /* bytes, which decompression may multiply by a thousand */
    MAX_WAITING = 4096, /* events per stream */
};

/* The deferred events of a stream. Freed when there is nothing left to do. Guarded by the session's lock. */
struct GrpcDeferred {
    Job job; /* first, so that both have the same address */
    GrpcDeferred *next; /* next in the session's queue, whose first entry has the turn */
    ThreadPool *readers;
    GrpcStream *stream; /* a reference */
    Event *events;
    size_t at, count, room;
};

static bool takes_long(const Event *event)
{
    return event->kind == EVENT_MESSAGE &&
        event->message.size > (event->compressed ? (size_t)LONG_COMPRESSED : (size_t)LONG_MESSAGE);
}

/* Add an event. Returns false if there are too many, or without memory. The caller holds the lock. */
static bool put(GrpcDeferred *deferred, const Event *event)
{
    if (deferred->count - deferred->at == MAX_WAITING)
        return false;
    if (deferred->at == deferred->count)
        deferred->at = deferred->count = 0;
    if (deferred->count == deferred->room) {
        size_t room = deferred->room ? deferred->room * 2 : 4;
        Event *grown = realloc(deferred->events, room * sizeof *grown);
        if (grown == NULL)
            return false;
        deferred->events = grown;
        deferred->room = room;
    }
    deferred->events[deferred->count++] = *event;
    return true;
}

/* Append to the session's queue. The caller holds the lock. */
static void enqueue(Session *session, GrpcDeferred *deferred)
{
    GrpcDeferred **last = session->deferred_last ? &session->deferred_last->next : &session->deferred_first;
    deferred->next = NULL;
    *last = session->deferred_last = deferred;
}

/* Remove the first entry from the session's queue. The caller holds the lock. */
static void dequeue(Session *session)
{
    session->deferred_first = session->deferred_first->next;
    if (session->deferred_first == NULL)
        session->deferred_last = NULL;
}

/* Take the next event of a turn, which includes at most one long message. Returns false at the end of the turn; then
 * `*next` is the stream that has the next turn (or NULL), and `*gone` says that nothing is left to do for this one.
 * The caller holds no lock.
 */
static bool take_event(GrpcDeferred *deferred, bool had_long, Event *event, GrpcDeferred **next, bool *gone)
{
    GrpcStream *stream = deferred->stream;
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    bool more = deferred->at < deferred->count;
    bool continues = more && !(had_long && takes_long(&deferred->events[deferred->at]));
    if (continues) {
        *event = deferred->events[deferred->at++];
    } else {
        dequeue(session);
        if (more) {
            enqueue(session, deferred);
        } else {
            __atomic_store_n(&stream->deferred, NULL, __ATOMIC_RELEASE);
            grpc_stream_resume(stream, &done);
        }
        *gone = !more;
        *next = session->deferred_first;
    }
    session_unlock(session, done);
    return continues;
}

/* Handle the events of one turn. Returns the stream that has the next turn on this connection, or NULL. */
static GrpcDeferred *turn(GrpcDeferred *deferred)
{
    GrpcStream *stream = deferred->stream;
    GrpcDeferred *next = NULL;
    Event event;
    bool gone = false;
    for (bool had_long = false; take_event(deferred, had_long, &event, &next, &gone);) {
        had_long |= takes_long(&event);
        event_handle(&event, true);
    }
    if (gone) {
        free(deferred->events);
        free(deferred);
        grpc_unref(stream);
    }
    return next;
}

static void run_nothing(Job *job)
{
    (void)job; /* run_turns does the work, and may free the job. */
}

/* Drop the events of a stream that is over. */
static void finish_dropped(GrpcStream *stream)
{
    Problem problem = {0};
    thread_pool_refuse(&problem);
    grpc_finish_problem(stream, &problem);
    problem_clear(&problem);
}

static void run_turns(Job *job)
{
    Problem problem = {0};
    GrpcDeferred *next = (GrpcDeferred *)job;
    do {
        problem_clear(&problem);
        if (next->job.dropped)
            finish_dropped(next->stream);
        next = turn(next);
    } while (next && !thread_pool_submit(next->readers, &next->job, &problem));
    problem_clear(&problem);
}

/* Create the state of a stream. The caller holds the lock. */
static GrpcDeferred *deferred_new(GrpcStream *stream, ThreadPool *readers)
{
    GrpcDeferred *deferred = calloc(1, sizeof *deferred);
    if (deferred) {
        deferred->job = (Job){.run = run_nothing, .done = run_turns};
        deferred->readers = readers;
        deferred->stream = stream;
        stream->refs++;
        enqueue(session_of(stream), deferred);
    }
    return deferred;
}

/* End a call whose event cannot be queued. */
static void refuse(Event *event)
{
    grpc_finish(event->stream, problem_grpc_code(PROBLEM_TOO_MANY),
        SLICE("too many messages are waiting for one that takes long to read"));
    handlers_of(event->stream)->cancelled(event->stream);
    event_drop(event);
}

bool event_defer(Event *event)
{
    GrpcStream *stream = event->stream;
    ThreadPool *readers = handlers_of(stream)->readers(stream);
    bool is_long = takes_long(event);
    if (readers == NULL || event->kind == EVENT_CANCELLED ||
        (!is_long && __atomic_load_n(&stream->deferred, __ATOMIC_ACQUIRE) == NULL))
        return false;
    Session *session = session_of(stream);
    GrpcDeferred *begun = NULL;
    bool fits = true;
    pthread_mutex_lock(&session->lock);
    if (stream->deferred == NULL && is_long) {
        bool is_first = session->deferred_first == NULL;
        GrpcDeferred *deferred = deferred_new(stream, readers);
        __atomic_store_n(&stream->deferred, deferred, __ATOMIC_RELEASE);
        begun = is_first ? deferred : NULL;
    }
    bool waits = stream->deferred != NULL;
    if (waits)
        fits = put(stream->deferred, event);
    pthread_mutex_unlock(&session->lock);
    if (waits && !fits)
        refuse(event);
    Problem problem = {0};
    if (begun && !thread_pool_submit(readers, &begun->job, &problem)) {
        problem_clear(&problem);
        run_turns(&begun->job);
    }
    return waits;
}
