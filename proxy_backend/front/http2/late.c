/* Messages that take long to be read, because they are large or compressed: a thread for that does it. What comes on their streams meanwhile
 * waits for them, in its order, and the client may send no more than the stream's window has left.
 *
 * A connection has one thread at a time, for one such message: then it goes to the end of the readers' line, and another of its streams has
 * the next turn. So nobody waits behind all that one client has sent.
 */
#include "http2/service.h"
#include "http2/session.h"

#include <stdlib.h>

enum {
    LONG_MESSAGE = 1 << 20, /* bytes */
    LONG_PACKED = 256, /* bytes that may become a thousand times as many */
    MOST_WAITING = 4096, /* events of a stream */
};

/* It goes when there is nothing left to do. Guarded by the session's lock. */
struct GrpcLate {
    Job job; /* first, so that it is found by its address */
    GrpcLate *next; /* of the session's line; its first one has the turn */
    Jobs *readers;
    GrpcStream *stream; /* held */
    Event *events;
    size_t at, count, room;
};

static bool takes_long(const Event *event)
{
    return event->kind == EVENT_MESSAGE &&
        event->message.size > (event->compressed ? (size_t)LONG_PACKED : (size_t)LONG_MESSAGE);
}

/* With the lock held. False: there are too many, or there is no memory. */
static bool put(GrpcLate *late, const Event *event)
{
    if (late->count - late->at == MOST_WAITING)
        return false;
    if (late->at == late->count)
        late->at = late->count = 0;
    if (late->count == late->room) {
        size_t room = late->room ? late->room * 2 : 4;
        Event *grown = realloc(late->events, room * sizeof *grown);
        if (grown == NULL)
            return false;
        late->events = grown;
        late->room = room;
    }
    late->events[late->count++] = *event;
    return true;
}

/* With the lock held. */
static void get_in_line(Session *session, GrpcLate *late)
{
    GrpcLate **last = session->late_last ? &session->late_last->next : &session->late_first;
    late->next = NULL;
    *last = session->late_last = late;
}

/* With the lock held, of the first in the line. */
static void leave_line(Session *session)
{
    session->late_first = session->late_first->next;
    if (session->late_first == NULL)
        session->late_last = NULL;
}

/* The next event of a turn, which has one message that takes long. False: the turn is over, and `*next` is the one that has the next
 * one, NULL where the connection has none; `*gone`: the stream goes on without this. */
static bool take(GrpcLate *late, bool had_long, Event *event, GrpcLate **next, bool *gone)
{
    GrpcStream *stream = late->stream;
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    bool more = late->at < late->count;
    bool goes_on = more && !(had_long && takes_long(&late->events[late->at]));
    if (goes_on) {
        *event = late->events[late->at++];
    } else {
        leave_line(session);
        if (more) {
            get_in_line(session, late);
        } else {
            __atomic_store_n(&stream->late, NULL, __ATOMIC_RELEASE);
            stream_resume(stream, &done);
        }
        *gone = !more;
        *next = session->late_first;
    }
    session_unlock(session, done);
    return goes_on;
}

/* A turn. Who has the next one of this connection; NULL: nobody. */
static GrpcLate *turn(GrpcLate *late)
{
    GrpcStream *stream = late->stream;
    GrpcLate *next = NULL;
    Event event;
    bool gone = false;
    for (bool had_long = false; take(late, had_long, &event, &next, &gone);) {
        had_long |= takes_long(&event);
        event_handle(&event, true);
    }
    if (gone) {
        free(late->events);
        free(late);
        grpc_unref(stream);
    }
    return next;
}

static void begin(Job *job)
{
    (void)job; /* all is done in go_on, after which it is not there any more */
}

/* What comes to a stream that is over is let go of. */
static void end(GrpcStream *stream)
{
    Problem problem = {0};
    jobs_refuse(&problem);
    grpc_finish_problem(stream, &problem);
    problem_clear(&problem);
}

static void go_on(Job *job)
{
    Problem problem = {0};
    GrpcLate *next = (GrpcLate *)job;
    do {
        problem_clear(&problem);
        if (next->job.dropped)
            end(next->stream);
        next = turn(next);
    } while (next && !jobs_give(next->readers, &next->job, &problem));
    problem_clear(&problem);
}

/* With the lock held. */
static GrpcLate *late_new(GrpcStream *stream, Jobs *readers)
{
    GrpcLate *late = calloc(1, sizeof *late);
    if (late) {
        late->job = (Job){.run = begin, .done = go_on};
        late->readers = readers;
        late->stream = stream;
        stream->refs++;
        get_in_line(session_of(stream), late);
    }
    return late;
}

/* What a thread has on its list cannot be put there. */
static void refuse(Event *event)
{
    grpc_finish(event->stream, problem_grpc_code(PROBLEM_TOO_MANY),
        SLICE("too many messages wait behind one that takes long to be read"));
    service_cancelled(event->stream);
    event_drop(event);
}

bool event_postpone(Event *event)
{
    GrpcStream *stream = event->stream;
    Jobs *readers = service_readers(stream);
    bool is_long = takes_long(event);
    if (readers == NULL || event->kind == EVENT_CANCELLED ||
        (!is_long && __atomic_load_n(&stream->late, __ATOMIC_ACQUIRE) == NULL))
        return false;
    Session *session = session_of(stream);
    GrpcLate *begun = NULL;
    bool fits = true;
    pthread_mutex_lock(&session->lock);
    if (stream->late == NULL && is_long) {
        bool is_first = session->late_first == NULL;
        GrpcLate *late = late_new(stream, readers);
        __atomic_store_n(&stream->late, late, __ATOMIC_RELEASE);
        begun = is_first ? late : NULL;
    }
    bool waits = stream->late != NULL;
    if (waits)
        fits = put(stream->late, event);
    pthread_mutex_unlock(&session->lock);
    if (waits && !fits)
        refuse(event);
    Problem problem = {0};
    if (begun && !jobs_give(readers, &begun->job, &problem)) {
        problem_clear(&problem);
        go_on(&begun->job);
    }
    return waits;
}
