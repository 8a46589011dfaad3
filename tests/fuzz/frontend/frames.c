/* What a client of gRPC sends on one connection, after the greeting if the first byte is even. Messages come back at once or, by
 * the call's path, from another thread; some end the call. */
#include "http2/service.h"
#include "net/connection_internal.h"
#include "net/loop.h"

#include "base/compression.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char HELLO[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";

static ThreadPool *readers;

typedef struct {
    Outgoing message; /* its first member */
    struct iovec part;
    Buffer text;
} Echo;

static void sent(Outgoing *message)
{
    buffer_free(&((Echo *)message)->text);
    free(message);
}

static void on_begin(GrpcStream *stream)
{
    stream->service = strdup("x");
}

static void on_message(GrpcStream *stream, Buffer *message)
{
    Echo *echo = calloc(1, sizeof *echo);
    if (message->size % 7 == 3)
        grpc_set_paused(stream, message->size % 2);
    if (message->size % 5 == 4)
        grpc_finish(stream, 3, buffer_slice(message));
    buffer_put_slice(&echo->text, buffer_slice(message));
    echo->part = (struct iovec){echo->text.data, echo->text.size};
    echo->message = (Outgoing){.parts = &echo->part, .count = echo->text.size > 0, .sent = sent};
    if (stream->path.size % 2)
        grpc_respond(stream, &echo->message);
    else
        grpc_send(stream, &echo->message);
}

static ThreadPool *on_readers(GrpcStream *stream)
{
    (void)stream;
    return readers;
}

static uint64_t on_message_bytes(GrpcStream *stream)
{
    return connection_endpoint(stream->connection)->limits->body_bytes;
}

static void on_half_closed(GrpcStream *stream)
{
    grpc_finish(stream, 0, SLICE(""));
}

static void on_cancelled(GrpcStream *stream)
{
    if (*(char *)stream->service != 'x')
        abort();
}

static void on_gone(GrpcStream *stream)
{
    free(stream->service);
    stream->service = NULL;
}

static const StreamHandlers HANDLERS = {
    .begin = on_begin,
    .message = on_message,
    .readers = on_readers,
    .message_bytes = on_message_bytes,
    .half_closed = on_half_closed,
    .cancelled = on_cancelled,
    .gone = on_gone,
};
static StreamService service = {&HANDLERS};
static Limits limits;
static Endpoint endpoint = {.protocol = &GRPC_PROTOCOL, .service = &service, .limits = &limits, .is_admin = true};
static Loop *loop;

typedef struct {
    Task task; /* its first member */
    int fd;
} Begin;

static void begin(Task *task)
{
    Address address = {0};
    connection_begin(loop, &endpoint, ((Begin *)task)->fd, &address, false);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    Problem problem = {0};
    const char *library = getenv("FUZZ_NGHTTP2");
    (void)count;
    (void)arguments;
    signal(SIGPIPE, SIG_IGN);
    limits = limits_default();
    limits.body_bytes = 1 << 20;
    limits.streams = 16;
    limits.resets_per_s = 64;
    if (!nghttp2_load(library ? library : "libnghttp2.so.14", &problem) || !compression_load(NULL, &problem) ||
        (readers = thread_pool_new(2, 1 << 16, &problem)) == NULL || (loop = loop_new(&problem)) == NULL ||
        !loop_start(loop, "loop", &problem)) {
        fprintf(stderr, "%s\n", problem_text(&problem));
        abort();
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    char said[4096];
    if (size == 0 || size > 1 << 16 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
        return 0;
    Begin task = {.task.run = begin, .fd = ends[1]};
    if (data[0] % 2 == 0)
        (void)!write(ends[0], HELLO, sizeof HELLO);
    (void)!write(ends[0], data + 1, size - 1);
    shutdown(ends[0], SHUT_WR);
    loop_post(loop, &task.task);
    for (;;) {
        struct pollfd end = {.fd = ends[0], .events = POLLIN};
        poll(&end, 1, -1);
        ssize_t got = read(ends[0], said, sizeof said);
        if (got == 0 || (got < 0 && end.revents & (POLLHUP | POLLERR)))
            break;
    }
    close(ends[0]);
    return 0;
}
