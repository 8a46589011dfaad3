/* Messages that take long to read, because they are large or compressed: a reader thread reads them. Later events of
 * their streams wait for them, in order, and the client may send no more than the rest of the stream's window. A
 * connection uses one thread at a time, for one such message: then it goes to the end of the readers' queue, and
 * another of its streams has the next turn. So nobody waits behind everything that one client has sent.
 */
#include "http2/service.h"
#include "http2/session.h"

#include <stdlib.h>

enum {
    LONG_MESSAGE = 1 << 20, /* bytes */
    LONG_PACKED = 256, /* bytes that may grow a thousandfold */
    MOST_WAITING = 4096, /* events per stream */
};

/* Freed when there is nothing left to do. Guarded by the session's lock. */
struct GrpcLate {
    Job job; /* first, so that its address is the object's */
    GrpcLate *next; /* in the session's queue; the first one has the turn */
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

/* With the lock held. Returns false if there are too many, or without memory. */
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

/* With the lock held, for the first in the queue. */
static void leave_line(Session *session)
{
    session->late_first = session->late_first->next;
    if (session->late_first == NULL)
        session->late_last = NULL;
}

/* Take the next event of a turn, which includes one long message. Returns false at the end of the turn; `*next` then
 * has the next one, NULL if the connection has none; `*gone`: the stream continues without this.
 */
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

/* Do a turn. Returns the connection's next one; NULL: none. */
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
    (void)job; /* go_on does everything, and may free it */
}

/* Drop events of a stream that is over. */
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

/* Events in a thread's list cannot be queued there. */
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
