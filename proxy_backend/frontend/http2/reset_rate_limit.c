/* Limits calls that clients cancel: each costs useless work, so a connection may cancel only so many a second. Beyond
 * that, its new calls are refused until the second is over. Calls in progress stay: a proxy has calls of many clients
 * on one connection. If none is in progress, the connection ends.
 */
#include "http2/session.h"

enum { SECOND_MS = 1000 };

void session_count_reset(Connection *connection)
{
    Session *session = connection_state(connection);
    uint64_t now_ms = loop_now_ms(connection_loop(connection));
    uint64_t most = connection_endpoint(connection)->limits->resets_per_s;
    if (now_ms - session->resets_since_ms >= SECOND_MS) {
        session->resets_since_ms = now_ms;
        session->resets = 0;
    }
    if (++session->resets <= most)
        return;
    if (session->resets == most + 1)
        refusals_count(REFUSED_RESETS);
    if (session->stream_count == 0)
        nghttp2.session_terminate_session(session->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

bool session_has_resets_left(GrpcStream *stream)
{
    const Session *session = session_of(stream);
    uint64_t now_ms = loop_now_ms(connection_loop(stream->connection));
    if (now_ms - session->resets_since_ms >= SECOND_MS ||
        session->resets <= connection_endpoint(stream->connection)->limits->resets_per_s)
        return true;
    return problem_set(
        &stream->problem, PROBLEM_UNAVAILABLE, "too many calls of this connection were cancelled: retry later");
}
