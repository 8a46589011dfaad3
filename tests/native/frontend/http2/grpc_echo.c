/* A server of gRPC over the frontend's rooms net and http2, without a core. Its calls, whose messages are bytes:
 *
 *     /echo/Now     each message comes back
 *     /echo/Later   each message comes back, from another thread
 *     /echo/Many    the message is two numbers: so many messages of so many bytes come back, from another thread
 *     /echo/Never   nothing comes back before the client gives up
 *     /echo/Refuse  the status 3, with the message as its text
 *     /echo/Huge    an answer of more bytes than a message can have
 *     /echo/Wants   a message has to come
 *     /echo/Gated   a message has to come; reading each one takes until a permit is given
 *     /echo/Permit  the message is the number of permits to give; it comes back
 *
 * Arguments: the path of nghttp2, then name=value of limits, and the descriptor that listens. It writes "ready", and at its end
 * how many calls began, were cancelled and are gone. SIGTERM: drain.
 */
#define _GNU_SOURCE
#include "base/compression.h"
#include "http2/nghttp2.h"
#include "http2/service.h"
#include "net/listener.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    atomic_int refs; /* one of the stream's, one of each message that is still to be answered */
    atomic_bool half_closed, cancelled;
    char kind;
} Call;

typedef struct CallResponse {
    Outgoing message; /* its first member */
    struct CallResponse *next;
    struct iovec part;
    GrpcStream *stream;
    Buffer text;
} CallResponse;

static atomic_int begun, cancelled, gone;
static sem_t permits;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static CallResponse *later, **last = &later;
static bool no_more;

static void sent(Outgoing *message)
{
    CallResponse *response = (CallResponse *)message;
    buffer_free(&response->text);
    free(response);
}

static void send_text(GrpcStream *stream, Buffer *text)
{
    CallResponse *response = calloc(1, sizeof *response);
    response->text = *text;
    response->part = (struct iovec){response->text.data, response->text.size};
    response->message = (Outgoing){.parts = &response->part, .count = response->text.size > 0, .sent = sent};
    *text = (Buffer){0};
    grpc_send(stream, &response->message);
}

/* The same piece of memory again and again. */
static void send_huge(GrpcStream *stream)
{
    enum { PARTS = 65 };
    static char bytes[64 << 20];
    static struct iovec parts[PARTS];
    CallResponse *response = calloc(1, sizeof *response);
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct iovec){bytes, sizeof bytes};
    response->message = (Outgoing){.parts = parts, .count = PARTS, .sent = sent};
    grpc_send(stream, &response->message);
}

/* A message has been answered, or the client has sent its last. */
static void one_less(GrpcStream *stream)
{
    Call *call = stream->service;
    if (--call->refs == 0)
        grpc_finish(stream, 0, SLICE(""));
}

static void answer_later(CallResponse *response)
{
    GrpcStream *stream = response->stream;
    Call *call = stream->service;
    unsigned long count = 1, size = response->text.size;
    if (call->kind == 'M')
        sscanf(buffer_string(&response->text), "%lu %lu", &count, &size);
    for (unsigned long i = 0; i < count && !call->cancelled; i++) {
        Buffer text = {0};
        if (call->kind == 'M' && size)
            memset(buffer_extend(&text, size), 'x', size);
        else
            buffer_put_slice(&text, buffer_slice(&response->text));
        send_text(stream, &text);
    }
    buffer_free(&response->text);
    free(response);
    one_less(stream);
    grpc_unref(stream);
}

static void *answer_all(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (later == NULL && !no_more)
            pthread_cond_wait(&more, &lock);
        CallResponse *response = later;
        if (response && (later = response->next) == NULL)
            last = &later;
        pthread_mutex_unlock(&lock);
        if (response == NULL)
            return NULL;
        answer_later(response);
    }
}

static ThreadPool *readers;

static void on_begin(GrpcStream *stream)
{
    Call *call = calloc(1, sizeof *call);
    begun++;
    call->refs = 1;
    call->kind = stream->path.size > 6 ? stream->path.start[6] : '?';
    __atomic_store_n(&stream->service, call, __ATOMIC_RELEASE);
    stream->needs_message = call->kind == 'W' || call->kind == 'G';
}

static void on_message(GrpcStream *stream, Buffer *message)
{
    Call *call = stream->service;
    stream->needs_message = false;
    if (call->kind == 'H') {
        send_huge(stream);
    } else if (call->kind == 'R') {
        grpc_finish(stream, 3, buffer_slice(message));
    } else if (call->kind == 'L' || call->kind == 'M') {
        CallResponse *response = calloc(1, sizeof *response);
        response->stream = grpc_ref(stream);
        response->text = *message;
        *message = (Buffer){0};
        call->refs++;
        pthread_mutex_lock(&lock);
        *last = response;
        last = &response->next;
        pthread_cond_signal(&more);
        pthread_mutex_unlock(&lock);
    } else if (call->kind == 'G') {
        sem_wait(&permits);
    } else if (call->kind == 'P') {
        for (int count = atoi(buffer_string(message)); count > 0; count--)
            sem_post(&permits);
        send_text(stream, message);
    } else if (call->kind == 'N' && stream->path.start[7] == 'o') {
        send_text(stream, message);
    }
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
    Call *call = stream->service;
    call->half_closed = true;
    if (call->kind != 'N' || stream->path.start[7] == 'o')
        one_less(stream);
}

static void on_cancelled(GrpcStream *stream)
{
    Call *call = __atomic_load_n(&stream->service, __ATOMIC_ACQUIRE);
    if (call)
        call->cancelled = true;
    cancelled++;
}

static void on_gone(GrpcStream *stream)
{
    gone++;
    free(stream->service);
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
static Listener *listener;

static void stop_accepting(Task *task)
{
    (void)task;
    listener_close(listener);
}

static void fail(Problem *problem)
{
    printf("%s\n", problem_text(problem));
    fflush(stdout);
    _exit(2);
}

int main(int count, char **arguments)
{
    static Task closing = {.run = stop_accepting};
    static Endpoint endpoint = {.protocol = &GRPC_PROTOCOL, .service = &service, .limits = &limits};
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    Problem problem = {0};
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    sem_init(&permits, 0, 0);
    limits = limits_default();
    if (!nghttp2_load(arguments[1], &problem) || !compression_load(NULL, &problem))
        fail(&problem);
    for (int i = 2; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (value == NULL)
            endpoint.fd = atoi(arguments[i]);
        else if (!limits_set(&limits, (Slice){arguments[i], (size_t)(value - arguments[i])}, atof(value + 1), &problem))
            fail(&problem);
    }
    Loop *loop = loop_new(&problem);
    if (loop == NULL || (readers = thread_pool_new(2, 1000, &problem)) == NULL ||
        (listener = listener_open(loop, &endpoint, &problem)) == NULL || !loop_start(loop, "loop", &problem))
        fail(&problem);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, answer_all, NULL);
    printf("ready\n");
    fflush(stdout);
    sigwait(&set, &number);
    loop_post(loop, &closing);
    connections_drain(loop);
    if (!connections_wait(20000)) {
        connections_abort(loop);
        connections_wait(5000);
    }
    pthread_mutex_lock(&lock);
    no_more = true;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    thread_pool_stop(readers);
    loop_stop(loop);
    loop_join(loop);
    loop_free(loop);
    thread_pool_free(readers);
    printf("begun %d cancelled %d gone %d connections %d\n", begun, cancelled, gone, (int)connections_count());
    for (int i = 0; i < REFUSALS; i++)
        if (refusals_read((Refusal)i))
            printf("refused %s %d\n", refusal_name((Refusal)i), (int)refusals_read((Refusal)i));
    return 0;
}
