/* Messages that take long to be read, because they are large or compressed: a thread for that does it. What comes on their streams meanwhile
 * waits for them, in its order, and the client may send no more than the stream's window has left.
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

/* The next event; false: there is none, and the stream goes on without this. */
static bool take(GrpcLate *late, Event *event)
{
    GrpcStream *stream = late->stream;
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    bool more = late->at < late->count;
    if (more) {
        *event = late->events[late->at++];
    } else {
        __atomic_store_n(&stream->late, NULL, __ATOMIC_RELEASE);
        stream_resume(stream, &done);
    }
    session_unlock(session, done);
    return more;
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
    GrpcLate *late = (GrpcLate *)job;
    GrpcStream *stream = late->stream;
    Event event;
    if (job->dropped)
        end(stream);
    while (take(late, &event))
        event_handle(&event, true);
    free(late->events);
    free(late);
    grpc_unref(stream);
}

static GrpcLate *late_new(GrpcStream *stream)
{
    GrpcLate *late = calloc(1, sizeof *late);
    if (late) {
        late->job = (Job){.run = begin, .done = go_on};
        late->stream = stream;
        stream->refs++;
    }
    return late;
}

/* What a thread has on its list cannot be put there. */
static void refuse(Event *event)
{
    grpc_finish(event->stream, problem_grpc_code(PROBLEM_TOO_MANY),
        SLICE("too many messages wait behind one that takes long to be read"));
    service_cancelled(event->stream);
    text_free(&event->message);
    grpc_unref(event->stream);
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
        begun = late_new(stream);
        __atomic_store_n(&stream->late, begun, __ATOMIC_RELEASE);
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
