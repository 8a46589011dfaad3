#define _GNU_SOURCE
#include "http2/service.h"
#include "http2/session.h"

#include "common/clock.h"

#include <stdlib.h>

enum { STREAM_WINDOW = 4 << 20, CONNECTION_WINDOW = 16 << 20, MAX_FRAME = 1 << 20 };
/* Maximum number of CONTINUATION frames per header block. All headers that a client may send fit into a few. */
enum { MAX_CONTINUATIONS = 8 };
/* Headers beyond the limit are skipped, and the call is answered with an error. Beyond this multiple of the limit, the
 * connection is ended.
 */
enum { MAX_HEADER_LISTS = 4 };
/* Maximum memory reserved for a message before it arrives. Untouched memory costs nothing. */
enum { RESERVED_BYTES = 4 << 20 };
/* Limits for reading from one client before other clients get their turn: number of messages, and time. */
enum { TURN_MESSAGES = 512, TURN_NS = 1000000 };
/* Maximum read size if no message is incomplete: enough for some dozens of small calls, which take far longer to run
 * than to read.
 */
enum { FEW_BYTES = 8 << 10 };
/* Maximum number of frames that wait to be sent: this many per stream, and some more. A client that causes more
 * answers than it reads is disconnected. Messages do not count, since streams have separate limits for them.
 */
enum { FRAMES_PER_STREAM = 4, FRAMES_EXTRA = 1024 };

/* ── nghttp2's callbacks, with the lock held ────────────────────────────────────────────────────────── */

/* Returns whether headers begin a stream with an id below an earlier one's, which is not allowed (RFC 9113, 5.1.1).
 * nghttp2 would ignore them.
 */
static bool is_unexpected(const Session *session, const nghttp2_frame_hd *head)
{
    if (head->type != NGHTTP2_HEADERS || head->stream_id > session->newest ||
        nghttp2.session_get_stream_user_data(session->session, head->stream_id))
        return false;
    unsigned count = session->cut_off_count < CUT_OFF ? session->cut_off_count : CUT_OFF;
    for (unsigned i = 0; i < count; i++)
        if (session->cut_off[i] == head->stream_id)
            return false;
    return true;
}

static int on_begin_frame(nghttp2_session *of, const nghttp2_frame_hd *head, void *user)
{
    Session *session = connection_state(user);
    if (is_unexpected(session, head)) {
        refusals_count(REFUSED_MALFORMED);
        return nghttp2.session_terminate_session(of, NGHTTP2_PROTOCOL_ERROR) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
    }
    session->continuations = head->type == NGHTTP2_CONTINUATION ? session->continuations + 1 : 0;
    if (session->continuations <= MAX_CONTINUATIONS)
        return 0;
    refusals_count(REFUSED_HEADER_BYTES);
    return NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    ((Session *)connection_state(user))->newest = frame->hd.stream_id;
    GrpcStream *stream = grpc_stream_new(user, frame->hd.stream_id);
    if (stream == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return nghttp2.session_set_stream_user_data(session, frame->hd.stream_id, stream) ? NGHTTP2_ERR_CALLBACK_FAILURE
                                                                                      : 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
    const uint8_t *value, size_t value_size, uint8_t flags, void *user)
{
    GrpcStream *stream = nghttp2.session_get_stream_user_data(session, frame->hd.stream_id);
    (void)flags;
    if (stream == NULL)
        return 0;
    /* With HPACK, a name and a value can take one byte each. Disconnect a client that sends ever more. */
    stream->header_bytes += name_size + value_size + 32;
    if (stream->header_bytes / MAX_HEADER_LISTS > connection_endpoint(user)->limits->header_bytes) {
        refusals_count(REFUSED_HEADER_BYTES);
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    if (stream->path.start || stream->problem.kind != PROBLEM_NONE)
        /* Ignore trailers of a client, which gRPC does not have, and headers of a call that is already refused. */
        return 0;
    grpc_stream_header(stream, (Slice){(const char *)name, name_size}, (Slice){(const char *)value, value_size},
        connection_endpoint(user)->limits);
    return 0;
}

static void refuse(GrpcStream *stream)
{
    buffer_free(&stream->message);
    bodies_release(stream->received);
    stream->message = (Buffer){0};
    stream->received = 0;
    session_set_receiving(session_of(stream), stream, false);
    session_emit(EVENT_REFUSED, stream);
}

static int begin_call(GrpcStream *stream)
{
    if (stream == NULL || stream->path.start)
        return 0;
    if (!grpc_stream_check(stream) || !session_has_resets_left(stream))
        refuse(stream);
    else if (!session_emit(EVENT_BEGIN, stream))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    else
        session_schedule_timeout(stream);
    return 0;
}

/* Handle the five bytes before a message, which are complete. */
static bool on_message_begin(Connection *connection, GrpcStream *stream)
{
    const Limits *limits = connection_endpoint(connection)->limits;
    stream->wanted = 0;
    for (int i = 1; i < 5; i++)
        stream->wanted = stream->wanted << 8 | stream->prefix[i];
    buffer_clear(&stream->message);
    buffer_reserve(&stream->message, stream->wanted < RESERVED_BYTES ? stream->wanted : RESERVED_BYTES);
    stream->compressed = stream->prefix[0] == 1;
    if (stream->prefix[0] > 1 || (stream->prefix[0] == 1 && stream->encoding == GRPC_IDENTITY))
        return problem_set(
            &stream->problem, PROBLEM_INTERNAL, "a message is compressed, but there is no grpc-encoding");
    if (stream->wanted > limits->body_bytes) {
        refusals_count(REFUSED_BODY_BYTES);
        return problem_set(&stream->problem, PROBLEM_TOO_LARGE,
            "a message has %zu bytes, more than the maximum of %llu", stream->wanted,
            (unsigned long long)limits->body_bytes);
    }
    return true;
}

/* Handle a received part of a message. */
static bool take_message(Connection *connection, GrpcStream *stream, const char **data, size_t *size)
{
    while (*size && stream->prefix_size < sizeof stream->prefix) {
        stream->prefix[stream->prefix_size++] = (unsigned char)*(*data)++;
        (*size)--;
        if (stream->prefix_size == sizeof stream->prefix && !on_message_begin(connection, stream))
            return false;
    }
    size_t missing = stream->wanted - stream->message.size;
    size_t piece = *size < missing ? *size : missing;
    if (!bodies_reserve(connection_endpoint(connection)->limits, piece, &stream->problem))
        return false;
    stream->received += piece;
    buffer_put(&stream->message, *data, piece);
    *data += piece;
    *size -= piece;
    if (stream->message.failed)
        return problem_no_memory(&stream->problem);
    session_set_receiving(session_of(stream), stream, true);
    if (stream->prefix_size < sizeof stream->prefix || stream->message.size < stream->wanted)
        return true;
    stream->prefix_size = 0;
    session_of(stream)->turn_messages++;
    session_set_receiving(session_of(stream), stream, false);
    if (!session_emit(EVENT_MESSAGE, stream))
        return problem_no_memory(&stream->problem);
    return true;
}

static int on_data_chunk(
    nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *user)
{
    GrpcStream *stream = nghttp2.session_get_stream_user_data(session, id);
    const char *at = (const char *)data;
    size_t left = size;
    (void)flags;
    if (session_is_behind(user))
        ((Session *)connection_state(user))->ungranted += size;
    else
        nghttp2.session_consume_connection(session, size);
    if (stream == NULL)
        return 0;
    stream->inbound.bytes += size;
    if (stream->paused || stream->deferred)
        stream->unconsumed += size;
    else
        nghttp2.session_consume_stream(session, id, size);
    while (left && stream->problem.kind == PROBLEM_NONE)
        if (!take_message(user, stream, &at, &left))
            refuse(stream);
    return 0;
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    GrpcStream *stream = nghttp2.session_get_stream_user_data(session, frame->hd.stream_id);
    ((Session *)connection_state(user))->greeted = true;
    if (frame->hd.type == NGHTTP2_HEADERS && begin_call(stream))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    bool ends = (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
        frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (stream && ends) {
        stream->ended = true;
        if (stream->problem.kind == PROBLEM_NONE && (stream->prefix_size || stream->receiving)) {
            problem_set(&stream->problem, PROBLEM_INVALID, "the last message is truncated");
            refuse(stream);
        } else if (stream->problem.kind == PROBLEM_NONE) {
            session_emit(EVENT_HALF_CLOSED, stream);
        }
    }
    return 0;
}

/* Called in the thread that sends the stream's last frame or finds out that it is over. This thread holds a reference
 * to the connection.
 */
static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *user)
{
    GrpcStream *stream = nghttp2.session_get_stream_user_data(session, id);
    bool here = loop_is_here(connection_loop(user));
    if (stream == NULL)
        return 0;
    bool on_response = stream->finishing && stream->first == NULL;
    if (!stream->ended) {
        Session *own = connection_state(user);
        own->cut_off[own->cut_off_count++ % CUT_OFF] = id;
    }
    grpc_stream_close(stream);
    if (!on_response && stream->service_knows)
        session_emit(EVENT_CANCELLED, stream);
    if (--stream->refs == 0) {
        grpc_stream_free(stream);
        connection_unref(user);
    }
    if (error != NGHTTP2_NO_ERROR && here)
        session_count_reset(user);
    return 0;
}

static nghttp2_session_callbacks *callbacks;
static nghttp2_option *option;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    if (nghttp2.session_callbacks_new(&callbacks) || nghttp2.option_new(&option)) {
        callbacks = NULL;
        return;
    }
    session_set_senders(callbacks);
    nghttp2.session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2.session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2.session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
    nghttp2.session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2.session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2.session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2.option_set_no_auto_window_update(option, 1);
    /* nghttp2's own limit of 33 per second would disconnect harmless clients. We have a configurable one. */
    if (nghttp2_option_set_stream_reset_rate_limit)
        nghttp2_option_set_stream_reset_rate_limit(option, UINT32_MAX, UINT32_MAX);
}

/* ── called by the connection, in the loop's thread ─────────────────────────────────────────────────── */

static void opened(Connection *connection)
{
    Session *session = connection_state(connection);
    const Limits *limits = connection_endpoint(connection)->limits;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)limits->streams},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, MAX_FRAME},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)limits->header_bytes},
    };
    Outgoing *done = NULL;
    pthread_mutex_init(&session->lock, NULL);
    pthread_once(&prepared, prepare);
    if (callbacks == NULL || nghttp2.session_server_new2(&session->session, callbacks, connection, option) ||
        nghttp2.submit_settings(session->session, 0, settings, sizeof settings / sizeof *settings) ||
        nghttp2.session_set_local_window_size(session->session, 0, 0, CONNECTION_WINDOW)) {
        connection_abort(connection);
        return;
    }
    connection_set_deadline(connection, limits->header_ms);
    session->due.expired = session_timeout_expired;
    pthread_mutex_lock(&session->lock);
    session_push(connection, &done);
    session_unlock(session, done);
}

/* Pass received data to nghttp2. Returns false if the connection is over. */
static bool receive(Connection *connection, const char *data, ssize_t size)
{
    Session *session = connection_state(connection);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    ssize_t taken =
        session->session ? nghttp2.session_mem_recv(session->session, (const uint8_t *)data, (size_t)size) : -1;
    if (taken < 0)
        refusals_count(REFUSED_MALFORMED);
    session_push(connection, &done); /* Also sends the reason for the connection's end. */
    bool floods = taken >= 0 &&
        nghttp2.session_get_outbound_queue_size(session->session) >
            FRAMES_PER_STREAM * connection_endpoint(connection)->limits->streams + FRAMES_EXTRA;
    if (taken >= 0)
        session_set_deadline(connection);
    session_unlock(session, done);
    if (floods)
        connection_refuse(connection, REFUSED_UNSENT_BYTES);
    if (taken < 0)
        connection_finish(connection);
    return taken >= 0 && !floods;
}

/* Returns whether other clients should get their turn, because this one's has lasted long enough. It began at
 * `since_ns`.
 */
static bool turn_is_over(Session *session, uint64_t since_ns)
{
    bool many = session->turn_messages >= TURN_MESSAGES || clock_ns() - since_ns >= TURN_NS;
    if (many)
        session->turn_messages = 0;
    return many;
}

static void readable(Connection *connection)
{
    Session *session = connection_state(connection);
    char *scratch = loop_scratch(connection_loop(connection));
    uint64_t since_ns = clock_ns();
    ssize_t size;
    while ((size = connection_read(connection, scratch, session->receiving ? LOOP_SCRATCH : FEW_BYTES)) > 0) {
        if (!receive(connection, scratch, size))
            return;
        if (turn_is_over(session, since_ns)) {
            connection_read_later(connection);
            return;
        }
    }
    if (size < 0)
        connection_abort(connection);
}

static void writable(Connection *connection)
{
    Session *session = connection_state(connection);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    session_push(connection, &done);
    session_unlock(session, done);
}

static void timed_out(Connection *connection)
{
    Session *session = connection_state(connection);
    Outgoing *done = NULL;
    bool idle = false;
    pthread_mutex_lock(&session->lock);
    if (session->session) {
        session_timed_out(connection);
        session_push(connection, &done);
        idle = session->stream_count == 0 && session->draining;
    }
    session_unlock(session, done);
    if (idle)
        connection_finish(connection);
}

static void drain(Connection *connection)
{
    Session *session = connection_state(connection);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    if (session->session && !session->draining && !session->sends_goaway) {
        session->sends_goaway = true;
        nghttp2.submit_shutdown_notice(session->session);
        session_push(connection, &done);
        session_set_deadline(connection);
    }
    session_unlock(session, done);
}

/* Ask the client to make new calls on another connection, which the other process accepts, and to close this one after
 * its calls in flight. A client that ignores this is still served, so that no call is lost.
 */
static void retire(Connection *connection)
{
    Session *session = connection_state(connection);
    Outgoing *done = NULL;
    pthread_mutex_lock(&session->lock);
    if (session->session && !session->retiring) {
        session->retiring = true;
        nghttp2.submit_shutdown_notice(session->session);
        session_push(connection, &done);
        session_set_deadline(connection);
    }
    session_unlock(session, done);
}

static void closed(Connection *connection)
{
    Session *session = connection_state(connection);
    loop_clear_timer(connection_loop(connection), &session->due);
    pthread_mutex_lock(&session->lock);
    while (session->streams) {
        GrpcStream *stream = session->streams;
        grpc_stream_close(stream);
        if (stream->service_knows)
            session_emit(EVENT_CANCELLED, stream);
        if (--stream->refs == 0) { /* The loop still holds a reference to the connection. */
            grpc_stream_free(stream);
            connection_unref(connection);
        }
    }
    if (session->session)
        nghttp2.session_del(session->session);
    session->session = NULL;
    session_unlock(session, NULL);
}

static void freed(Connection *connection)
{
    Session *session = connection_state(connection);
    while (session->spare) {
        GrpcStream *stream = session->spare;
        session->spare = stream->next;
        buffer_free(&stream->headers);
        buffer_free(&stream->message);
        buffer_free(&stream->trailer);
        free(stream);
    }
    pthread_mutex_destroy(&session->lock);
}

const Protocol GRPC_PROTOCOL = {
    .name = "grpc",
    .alpn = "h2",
    .size = sizeof(Session),
    .opened = opened,
    .readable = readable,
    .writable = writable,
    .timed_out = timed_out,
    .drain = drain,
    .closed = closed,
    .freed = freed,
    .retire = retire,
};
