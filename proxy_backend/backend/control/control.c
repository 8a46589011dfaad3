/* A ZMTP 3.0 client with the NULL mechanism, as a DEALER (https://rfc.zeromq.org/spec/23/). For four types of
 * requests, a ZeroMQ library in tritonserver's process would not be worth the dependency on every machine.
 */
#define _GNU_SOURCE
#include "control/control.h"

#include "common/clock.h"
#include "base/strings.h"
#include "wire/protocol.h"
#include "wire/shapes.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { GREETING = 64, ID = 8, MORE = 1, LONG = 2, COMMAND = 4 };
/* Maximum size of a reply. */
enum { MAX_FRAME_BYTES = 1 << 24 };
/* A dispatcher that is upgraded in place closes its connections but keeps listening. Send the request again, at most
 * this many times.
 */
enum { MAX_TRIES = 8 };

struct Control {
    pthread_mutex_t lock;
    struct sockaddr_un address;
    socklen_t address_size;
    int fd;
    uint64_t request_count;
};

static char *transport_error(const char *what)
{
    return strdup_printf("cannot send a request to the dispatcher: %s", what);
}

Control *control_new(const char *endpoint)
{
    Control *control = calloc(1, sizeof *control);
    const char *path = strncmp(endpoint, "ipc://", 6) == 0 ? endpoint + 6 : "";
    size_t size = strlen(path);
    if (control == NULL || size == 0 || size >= sizeof control->address.sun_path) {
        free(control);
        return NULL;
    }
    pthread_mutex_init(&control->lock, NULL);
    control->fd = -1;
    control->address.sun_family = AF_UNIX;
    memcpy(control->address.sun_path, path, size + 1);
    control->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (path[0] != '@'));
    if (path[0] == '@')
        control->address.sun_path[0] = 0;
    return control;
}

static void disconnect(Control *control)
{
    if (control->fd >= 0)
        close(control->fd);
    control->fd = -1;
}

void control_free(Control *control)
{
    if (control == NULL)
        return;
    disconnect(control);
    pthread_mutex_destroy(&control->lock);
    free(control);
}

static int64_t now_ms(void)
{
    return (int64_t)(clock_ns() / 1000000);
}

/* Limit the time for connecting (which blocks while the backlog is full) and sending. A deadline of -1 means no limit.
 */
static bool set_send_timeout(int fd, int64_t deadline_ms)
{
    int64_t left = deadline_ms < 0 ? 0 : deadline_ms - now_ms();
    struct timeval timeout = {.tv_sec = (time_t)(left / 1000), .tv_usec = (suseconds_t)(left % 1000 * 1000)};
    if (deadline_ms >= 0 && left <= 0) {
        errno = ETIMEDOUT;
        return false;
    }
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0;
}

static bool send_all(int fd, const void *bytes, size_t size)
{
    const char *next = bytes;
    while (size) {
        ssize_t sent = send(fd, next, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        next += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Receive exactly `size` bytes. A deadline of -1 means no limit. */
static bool receive_all(int fd, void *bytes, size_t size, int64_t deadline_ms)
{
    char *next = bytes;
    while (size) {
        int64_t left = deadline_ms < 0 ? -1 : deadline_ms - now_ms();
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        if (deadline_ms >= 0 && left <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
        if (deadline_ms >= 0 && poll(&waiting, 1, (int)left) <= 0)
            continue;
        ssize_t received = recv(fd, next, size, 0);
        if (received < 0 && errno == EINTR)
            continue;
        if (received == 0)
            errno = ECONNRESET;
        if (received <= 0)
            return false;
        next += received;
        size -= (size_t)received;
    }
    return true;
}

/* Receive one frame and append its body to `body`. Returns the frame's flags, or -1 if the connection failed. */
static int receive_frame(int fd, Buffer *body, int64_t deadline_ms)
{
    uint8_t head[9];
    if (!receive_all(fd, head, 2, deadline_ms))
        return -1;
    uint64_t size = head[1];
    if (head[0] & LONG) {
        if (!receive_all(fd, head + 2, 7, deadline_ms))
            return -1;
        size = 0;
        for (int i = 1; i < 9; i++)
            size = size << 8 | head[i];
    }
    char *bytes = size <= MAX_FRAME_BYTES ? malloc(size + 1) : NULL;
    bool whole = bytes != NULL && receive_all(fd, bytes, size, deadline_ms);
    if (whole)
        buffer_put(body, bytes, size);
    free(bytes);
    return whole && !body->failed ? head[0] : -1;
}

static bool send_frame(int fd, int flags, const void *body, size_t size)
{
    uint8_t head[9] = {(uint8_t)(size < 256 ? flags : flags | LONG), (uint8_t)size};
    if (size >= 256)
        for (int i = 0; i < 8; i++)
            head[1 + i] = (uint8_t)((uint64_t)size >> (8 * (7 - i)));
    return send_all(fd, head, size < 256 ? 2 : 9) && send_all(fd, body, size);
}

static bool handshake(int fd, int64_t deadline_ms)
{
    static const char ready[] = "\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0\0";
    uint8_t greeting[GREETING] = {0xff, [9] = 0x7f, [10] = 3, [12] = 'N', 'U', 'L', 'L'};
    uint8_t theirs[GREETING];
    Buffer command = {0};
    bool agreed = send_all(fd, greeting, sizeof greeting) && receive_all(fd, theirs, sizeof theirs, deadline_ms) &&
        theirs[0] == 0xff && theirs[10] >= 3 && memcmp(theirs + 12, "NULL", 5) == 0 &&
        send_frame(fd, COMMAND, ready, sizeof ready - 1) && receive_frame(fd, &command, deadline_ms) == COMMAND &&
        command.size > 6 && memcmp(command.data, "\5READY", 6) == 0;
    buffer_free(&command);
    return agreed;
}

static bool ensure_connected(Control *control, int64_t deadline_ms)
{
    if (control->fd >= 0)
        return set_send_timeout(control->fd, deadline_ms);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    if (!set_send_timeout(fd, deadline_ms) ||
        connect(fd, (struct sockaddr *)&control->address, control->address_size) != 0 || !handshake(fd, deadline_ms)) {
        int why = errno ? errno : EPROTO;
        close(fd);
        errno = why;
        return false;
    }
    control->fd = fd;
    return true;
}

/* Returns whether an error means that the dispatcher closed the connection. */
static bool was_closed(int error)
{
    return error == ECONNRESET || error == EPIPE;
}

static bool send_message(Control *control, const Buffer *message, uint8_t id[ID], int64_t deadline_ms)
{
    uint64_t number = ++control->request_count;
    memcpy(id, &number, ID);
    errno = 0;
    return ensure_connected(control, deadline_ms) && send_frame(control->fd, MORE, id, ID) &&
        send_frame(control->fd, 0, message->data, message->size);
}

/* Receive the next message completely. Returns 1 if it answers the request `id`, 0 if not, -1 on failure. */
static int receive_message(Control *control, const uint8_t id[ID], Buffer *reply, int64_t deadline_ms)
{
    Buffer first = {0};
    bool answers = false;
    int flags = 0, frames = 0;
    do {
        Buffer other = {0};
        Buffer *body = frames == 0 ? &first : frames == 1 ? reply : &other;
        body->size = 0;
        flags = receive_frame(control->fd, body, deadline_ms);
        buffer_free(&other);
        if (flags >= 0 && flags & COMMAND) { /* For example a heartbeat. No command of ZMTP 3.0 needs an answer. */
            flags = MORE;
            continue;
        }
        frames++;
    } while (flags > 0 && flags & MORE);
    answers = flags >= 0 && frames >= 2 && first.size == ID && memcmp(first.data, id, ID) == 0;
    buffer_free(&first);
    return flags < 0 ? -1 : answers;
}

/* Send the request once. Returns 1 if it was answered, or -1 with errno. */
static int request_once(Control *control, const Buffer *request, Buffer *reply, int64_t deadline_ms)
{
    uint8_t id[ID];
    int status = send_message(control, request, id, deadline_ms) ? 0 : -1;
    while (status == 0)
        status = receive_message(control, id, reply, deadline_ms);
    int why = errno ? errno : EPROTO;
    if (status < 0) /* Close the connection: a late reply would be taken for the answer to the next request. */
        disconnect(control);
    errno = why;
    return status;
}

char *control_request(Control *control, const Buffer *request, Buffer *reply, int timeout_ms)
{
    char *failure = NULL;
    int64_t deadline_ms = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    int status = -1;
    errno = ECONNRESET;
    pthread_mutex_lock(&control->lock);
    for (int tries = 0; tries < MAX_TRIES && status < 0 && was_closed(errno) && !request->failed; tries++)
        status = request_once(control, request, reply, deadline_ms);
    if (status < 0)
        failure = transport_error(request->failed ? "out of memory" : strerror(errno));
    pthread_mutex_unlock(&control->lock);
    ShapeError shape_error;
    if (failure == NULL && !message_is_valid(msgpack_read(reply->data, reply->size), control_messages, &shape_error))
        failure = strdup_printf("the dispatcher sent an invalid answer: %s", shape_error.text);
    if (failure == NULL && reply_is(reply, FAILURE_NAME)) {
        failure = reply_text(reply, FAILURE_text);
        if (failure == NULL)
            failure = transport_error("it gave no reason");
    }
    return failure;
}

void control_send(Control *control, const Buffer *message)
{
    uint8_t id[ID];
    bool sent = message->failed;
    errno = ECONNRESET;
    pthread_mutex_lock(&control->lock);
    for (int tries = 0; tries < MAX_TRIES && !sent && was_closed(errno); tries++) {
        sent = send_message(control, message, id, -1);
        int why = errno;
        if (!sent)
            disconnect(control);
        errno = why;
    }
    pthread_mutex_unlock(&control->lock);
}

bool reply_get(const Buffer *reply, const char *key, Reader *value)
{
    Reader reader = msgpack_read(reply->data, reply->size);
    bool found = false;
    for (uint32_t pairs = msgpack_get_map(&reader); pairs && !reader.malformed; pairs--) {
        /* If a key occurs twice, the last value counts, as in msgspec. */
        if (slice_is(msgpack_get_text(&reader), key)) {
            *value = reader;
            found = msgpack_kind(&reader) != MSGPACK_NIL;
        }
        msgpack_skip(&reader, 0);
    }
    return found && !reader.malformed;
}

bool reply_is(const Buffer *reply, const char *type)
{
    Reader value;
    return reply_get(reply, "type", &value) && slice_is(msgpack_get_text(&value), type);
}

char *reply_text(const Buffer *reply, const char *key)
{
    Reader value;
    if (!reply_get(reply, key, &value))
        return NULL;
    Slice text = msgpack_get_text(&value);
    return value.malformed ? NULL : strdup_printable(text);
}

void message_begin(Buffer *buffer, const char *type, uint32_t fields)
{
    msgpack_put_map(buffer, 1 + fields);
    message_put_text(buffer, "type", type);
}

void message_put_text(Buffer *buffer, const char *key, const char *value)
{
    msgpack_put_string(buffer, key);
    if (value)
        msgpack_put_string(buffer, value);
    else
        msgpack_put_nil(buffer);
}

void message_put_int(Buffer *buffer, const char *key, int64_t value)
{
    msgpack_put_string(buffer, key);
    msgpack_put_int(buffer, value);
}

void message_put_bool(Buffer *buffer, const char *key, bool value)
{
    msgpack_put_string(buffer, key);
    msgpack_put_bool(buffer, value);
}
