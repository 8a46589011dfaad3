#include "http2/service.h"
#include "http2/session.h"

#include <stdio.h>
#include <stdlib.h>

/* Pieces up to this size are copied to a batch for one system call: frame headers and HTTP headers. Messages are not
 * copied.
 */
enum { COPIED_PIECE = 512 };
/* The length of a gRPC message has 32 bits, of which protobuf can read 31. */
enum { MAX_MESSAGE_BYTES = INT32_MAX };
/* A message of up to this size may always wait, whatever other clients leave unread. */
enum { SMALL_MESSAGE = 64 << 10 };
enum { BATCH_PARTS = 64, BATCH_COPIED = 16 << 10, BATCH_BYTES = 256 << 10 };

typedef struct {
    struct iovec parts[BATCH_PARTS];
    int count;
    size_t bytes, copied;
    char copies[BATCH_COPIED];
} Batch;

/* Filled and emptied while a connection's lock is held, so one per thread is enough. */
static _Thread_local Batch batch;
/* Messages whose last byte is in the batch. */
static _Thread_local Outgoing *batched;

static Connection *connection_of_session(void *user)
{
    return user;
}

static void flush(Connection *connection)
{
    Session *session = connection_state(connection);
    if (batch.count && connection_write_all(connection, batch.parts, batch.count))
        session->blocked = connection_unsent(connection) > 0;
    batch.count = 0;
    batch.bytes = batch.copied = 0;
}

static void add(const void *data, size_t size)
{
    batch.parts[batch.count++] = (struct iovec){(void *)(uintptr_t)data, size};
    batch.bytes += size;
}

/* Copy bytes, at most BATCH_COPIED, to the batch. */
static void add_copy(Connection *connection, const void *data, size_t size)
{
    if (batch.count == BATCH_PARTS || batch.copied + size > BATCH_COPIED)
        flush(connection);
    char *copy = batch.copies + batch.copied;
    memcpy(copy, data, size);
    batch.copied += size;
    struct iovec *last = batch.count ? &batch.parts[batch.count - 1] : NULL;
    if (last && (char *)last->iov_base + last->iov_len == copy) {
        last->iov_len += size;
        batch.bytes += size;
    } else {
        add(copy, size);
    }
}

static ssize_t send_frame(nghttp2_session *of, const uint8_t *data, size_t size, int flags, void *user)
{
    Connection *connection = connection_of_session(user);
    Session *session = connection_state(connection);
    (void)of;
    (void)flags;
    if (batch.bytes >= BATCH_BYTES)
        flush(connection);
    if (session->blocked)
        return NGHTTP2_ERR_WOULDBLOCK;
    size = size < BATCH_COPIED ? size : BATCH_COPIED;
    add_copy(connection, data, size);
    return (ssize_t)size;
}

/* Returns the next piece of a message, at most `size` bytes. */
static Slice take_piece(Outgoing *message, size_t size)
{
    const char *start;
    size_t left;
    if (message->at < sizeof message->prefix) {
        start = message->prefix + message->at;
        left = sizeof message->prefix - message->at;
    } else {
        while (message->part_at == message->parts[message->part].iov_len) {
            message->part++;
            message->part_at = 0;
        }
        start = (char *)message->parts[message->part].iov_base + message->part_at;
        left = message->parts[message->part].iov_len - message->part_at;
        message->part_at += left < size ? left : size;
    }
    left = left < size ? left : size;
    message->at += left;
    return (Slice){start, left};
}

static void put_data(Connection *connection, GrpcStream *stream, size_t size)
{
    Session *session = connection_state(connection);
    while (size && stream->first) {
        Outgoing *message = stream->first;
        Slice piece = take_piece(message, size);
        if (batch.count == BATCH_PARTS)
            flush(connection);
        if (piece.size <= COPIED_PIECE)
            add_copy(connection, piece.start, piece.size);
        else
            add(piece.start, piece.size);
        size -= piece.size;
        stream->queued -= piece.size;
        session->unsent -= piece.size;
        stream->outbound.bytes += piece.size;
        if (message->at == message->size) {
            stream->first = message->next;
            stream->waiting--;
            session->unsent -= WAITING_BYTES;
            if (stream->first == NULL)
                stream->last = &stream->first;
            message->next = batched;
            batched = message;
        }
    }
}

static int send_data(nghttp2_session *of, nghttp2_frame *frame, const uint8_t *head, size_t size,
    nghttp2_data_source *source, void *user)
{
    Connection *connection = connection_of_session(user);
    Session *session = connection_state(connection);
    (void)of;
    (void)frame;
    if (batch.bytes >= BATCH_BYTES)
        flush(connection);
    if (session->blocked)
        return NGHTTP2_ERR_WOULDBLOCK;
    add_copy(connection, head, 9);
    put_data(connection, source->ptr, size);
    return 0;
}

/* A call was answered before the client has sent everything: tell the client that it need not send the rest. */
static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    (void)user;
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    GrpcStream *stream = nghttp2.session_get_stream_user_data(session, frame->hd.stream_id);
    if (stream && !stream->ended)
        nghttp2.submit_rst_stream(session, 0, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

void session_set_senders(nghttp2_session_callbacks *callbacks)
{
    nghttp2.session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2.session_callbacks_set_send_callback(callbacks, send_frame);
    nghttp2.session_callbacks_set_send_data_callback(callbacks, send_data);
}

static nghttp2_nv header(const char *name, const char *value, size_t size)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), size, 0};
}

static size_t trailers(GrpcStream *stream, nghttp2_nv *headers, char code[4])
{
    size_t count = 0;
    int digits = snprintf(code, 4, "%d", stream->code);
    headers[count++] = header("grpc-status", code, (size_t)digits);
    if (stream->trailer.size)
        headers[count++] = header("grpc-message", stream->trailer.data, stream->trailer.size);
    return count;
}

static ssize_t read_data(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *flags,
    nghttp2_data_source *source, void *user)
{
    GrpcStream *stream = source->ptr;
    (void)buffer;
    (void)user;
    if (stream->queued == 0 && !stream->finishing)
        return NGHTTP2_ERR_DEFERRED;
    size = size < stream->queued ? size : stream->queued;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (stream->finishing && size == stream->queued) {
        nghttp2_nv headers[2];
        char code[4];
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2.submit_trailer(session, id, headers, trailers(stream, headers, code)))
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return (ssize_t)size;
}

static bool begin(Session *session, GrpcStream *stream)
{
    nghttp2_nv headers[6] = {
        header(":status", "200", 3),
        header("content-type", "application/grpc", strlen("application/grpc")),
        header("grpc-accept-encoding", "identity,deflate,gzip", strlen("identity,deflate,gzip")),
    };
    size_t count = 3;
    char code[4];
    bool only_status = stream->finishing && stream->first == NULL;
    nghttp2_data_provider data = {.source.ptr = stream, .read_callback = read_data};
    if (only_status)
        count += trailers(stream, headers + count, code);
    stream->begun = true;
    return nghttp2.submit_response(session->session, stream->id, headers, count, only_status ? NULL : &data) == 0;
}

bool session_is_behind(Connection *connection)
{
    const Session *session = connection_state(connection);
    return unsent_is_excessive(connection_endpoint(connection)->limits, session->unsent);
}

void session_count_unsent(Session *session)
{
    if (session->unsent > session->unsent_counted)
        unsent_add(session->unsent - session->unsent_counted);
    else if (session->unsent < session->unsent_counted)
        unsent_release(session->unsent_counted - session->unsent);
    session->unsent_counted = session->unsent;
}

/* Return the flow-control windows that were withheld while the client left too much unread. */
static void grant(Session *session)
{
    nghttp2.session_consume_connection(session->session, session->ungranted);
    session->ungranted = 0;
}

void session_push(Connection *connection, Outgoing **done)
{
    Session *session = connection_state(connection);
    if (session->session == NULL)
        return;
    session->blocked = connection_unsent(connection) > 0;
    int result = session->blocked ? 0 : nghttp2.session_send(session->session);
    flush(connection);
    if (session->ungranted && !session_is_behind(connection)) {
        grant(session);
        if (!session->blocked && result == 0)
            result = nghttp2.session_send(session->session);
        flush(connection);
    }
    while (batched) {
        Outgoing *message = batched;
        batched = message->next;
        message->next = *done;
        *done = message;
    }
    if (result && result != NGHTTP2_ERR_WOULDBLOCK)
        connection_abort(connection);
    else if (session->blocked)
        connection_await_writable(connection);
    else if (!nghttp2.session_want_read(session->session) && !nghttp2.session_want_write(session->session))
        connection_finish(connection);
}

void grpc_stream_drop(GrpcStream *stream, Outgoing **done)
{
    if (stream->first == NULL)
        return;
    session_of(stream)->unsent -= stream->queued + stream->waiting * WAITING_BYTES;
    *stream->last = *done;
    *done = stream->first;
    stream->first = NULL;
    stream->last = &stream->first;
    stream->queued = stream->waiting = 0;
}

void outgoing_done(Outgoing *done)
{
    while (done) {
        Outgoing *message = done;
        done = message->next;
        message->sent(message);
    }
}

/* Resume a stream that has new data to send. */
static void resume(Session *session, GrpcStream *stream, Outgoing **done)
{
    if (!stream->begun ? !begin(session, stream)
                       : nghttp2.session_resume_data(session->session, stream->id) == NGHTTP2_ERR_NOMEM)
        connection_abort(stream->connection);
    else
        session_push(stream->connection, done);
}

/* Returns whether a message may wait until its client reads it. A small one for a client that has read everything so
 * far always may. The caller holds the lock.
 */
static bool may_wait(Session *session, const Limits *limits, size_t size)
{
    size += WAITING_BYTES;
    if ((session->unsent == 0 && size <= SMALL_MESSAGE) || connection_endpoint(connection_of(session))->is_admin)
        return true;
    session_count_unsent(session);
    if (!unsent_reserve(limits, session->unsent, size))
        return false;
    session->unsent_counted += size;
    return true;
}

/* End the call with an error, because the client leaves too much unread. Data that already waits is still sent. */
static void refuse(GrpcStream *stream, Outgoing *message)
{
    Problem problem = {0};
    refusals_count(REFUSED_UNSENT_BYTES);
    unsent_problem(connection_endpoint(stream->connection)->limits, &problem);
    message->sent(message);
    grpc_finish_problem(stream, &problem);
    problem_clear(&problem);
    handlers_of(stream)->cancelled(stream);
}

static void queue(GrpcStream *stream, Outgoing *message, bool is_last)
{
    Session *session = session_of(stream);
    const Limits *limits = connection_endpoint(stream->connection)->limits;
    Outgoing *done = NULL;
    bool refused = false;
    size_t size = 0;
    for (unsigned i = 0; i < message->count; i++)
        size += message->parts[i].iov_len;
    if (size > MAX_MESSAGE_BYTES) {
        grpc_finish(
            stream, problem_grpc_code(PROBLEM_TOO_LARGE), SLICE("an answer is larger than 2 GiB, the maximum of gRPC"));
        message->sent(message);
        return;
    }
    message->prefix[0] = 0; /* The compressed flag: not compressed. */
    for (int i = 0; i < 4; i++)
        message->prefix[1 + i] = (char)(size >> (24 - 8 * i));
    message->size = size + sizeof message->prefix;
    message->at = message->part_at = message->part = 0;
    message->next = NULL;
    pthread_mutex_lock(&session->lock);
    if (stream->closed || stream->finishing || session->session == NULL) {
        done = message;
    } else if (!may_wait(session, limits, message->size)) {
        refused = true;
    } else {
        session->unsent += message->size + WAITING_BYTES;
        *stream->last = message;
        stream->last = &message->next;
        stream->queued += message->size;
        stream->newest = message->size;
        stream->waiting++;
        stream->finishing = is_last;
        resume(session, stream, &done);
    }
    session_unlock(session, done);
    if (refused)
        refuse(stream, message);
}

void grpc_send(GrpcStream *stream, Outgoing *message)
{
    queue(stream, message, false);
}

void grpc_respond(GrpcStream *stream, Outgoing *message)
{
    queue(stream, message, true);
}

void grpc_finish(GrpcStream *stream, int code, Slice text)
{
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    if (!stream->closed && !stream->finishing && session->session) {
        stream->finishing = true;
        stream->code = code;
        grpc_put_message(&stream->trailer, text);
        resume(session, stream, &done);
    }
    session_unlock(session, done);
}

/* Report that a call was not processed, after the client was asked to use another connection (RFC 9113, 8.7). */
static bool refuse_unprocessed(GrpcStream *stream)
{
    Session *session = session_of(stream);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    bool can = session->retiring && !stream->begun && !stream->closed && !stream->finishing && session->session;
    if (can) {
        stream->finishing = true;
        nghttp2.submit_rst_stream(session->session, 0, stream->id, NGHTTP2_REFUSED_STREAM);
        session_push(stream->connection, &done);
    }
    session_unlock(session, done);
    return can;
}

void grpc_finish_problem(GrpcStream *stream, const Problem *problem)
{
    if (problem->kind == PROBLEM_ELSEWHERE && refuse_unprocessed(stream))
        return;
    grpc_finish(stream, problem_grpc_code(problem->kind), slice_of(problem_text(problem)));
}
