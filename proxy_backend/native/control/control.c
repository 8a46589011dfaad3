/* ZMTP 3.0 with the NULL mechanism, as a DEALER (https://rfc.zeromq.org/spec/23/). A ZeroMQ library inside
 * tritonserver would be one more dependency on every machine, for four request types.
 */
#define _GNU_SOURCE
#include "control/control.h"

#include "base/clock.h"
#include "base/text.h"
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
/* No answer to a proxy is longer. */
enum { LONGEST_FRAME = 1 << 24 };
/* A dispatcher that is upgraded in place closes its connections but keeps listening: ask again, at most this often in
 * a row.
 */
enum { MOST_TRIES = 8 };

struct Control {
    pthread_mutex_t lock;
    struct sockaddr_un address;
    socklen_t address_size;
    int fd;
    uint64_t questions;
};

static char *explain(const char *what)
{
    return texted("the dispatcher cannot be asked: %s", what);
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

static void hang_up(Control *control)
{
    if (control->fd >= 0)
        close(control->fd);
    control->fd = -1;
}

void control_free(Control *control)
{
    if (control == NULL)
        return;
    hang_up(control);
    pthread_mutex_destroy(&control->lock);
    free(control);
}

static int64_t now_ms(void)
{
    return (int64_t)(steady_ns() / 1000000);
}

/* Limit connecting (a full backlog makes it wait) and sending to the deadline; -1: no limit. */
static bool limit(int fd, int64_t deadline_ms)
{
    int64_t left = deadline_ms < 0 ? 0 : deadline_ms - now_ms();
    struct timeval patience = {.tv_sec = (time_t)(left / 1000), .tv_usec = (suseconds_t)(left % 1000 * 1000)};
    if (deadline_ms >= 0 && left <= 0) {
        errno = ETIMEDOUT;
        return false;
    }
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0;
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

/* `deadline_ms` -1: none. */
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

/* Receive one frame and append its body to `body`. Returns its flags; -1: the connection failed. */
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
    char *bytes = size <= LONGEST_FRAME ? malloc(size + 1) : NULL;
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

static bool shake_hands(int fd, int64_t deadline_ms)
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

static bool connected(Control *control, int64_t deadline_ms)
{
    if (control->fd >= 0)
        return limit(control->fd, deadline_ms);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    if (!limit(fd, deadline_ms) || connect(fd, (struct sockaddr *)&control->address, control->address_size) != 0 ||
        !shake_hands(fd, deadline_ms)) {
        int why = errno ? errno : EPROTO;
        close(fd);
        errno = why;
        return false;
    }
    control->fd = fd;
    return true;
}

/* Returns whether the error means that the other end closed the connection; other errors are failures. */
static bool was_closed(int error)
{
    return error == ECONNRESET || error == EPIPE;
}

static bool send_message(Control *control, const Buffer *message, uint8_t id[ID], int64_t deadline_ms)
{
    uint64_t number = ++control->questions;
    memcpy(id, &number, ID);
    errno = 0;
    return connected(control, deadline_ms) && send_frame(control->fd, MORE, id, ID) &&
        send_frame(control->fd, 0, message->data, message->size);
}

/* Receive the next message completely. Returns 1 if it answers `id`, 0 if not, -1 on failure. */
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
        if (flags >= 0 && flags & COMMAND) { /* for example a heartbeat: no command of 3.0 needs an answer */
            flags = MORE;
            continue;
        }
        frames++;
    } while (flags > 0 && flags & MORE);
    answers = flags >= 0 && frames >= 2 && first.size == ID && memcmp(first.data, id, ID) == 0;
    buffer_free(&first);
    return flags < 0 ? -1 : answers;
}

/* Ask once. Returns 1: answered; -1: not answered, see errno. */
static int ask_once(Control *control, const Buffer *question, Buffer *reply, int64_t deadline_ms)
{
    uint8_t id[ID];
    int heard = send_message(control, question, id, deadline_ms) ? 0 : -1;
    while (heard == 0)
        heard = receive_message(control, id, reply, deadline_ms);
    int why = errno ? errno : EPROTO;
    if (heard < 0) /* a late reply would be taken for the answer to another request */
        hang_up(control);
    errno = why;
    return heard;
}

char *control_ask(Control *control, const Buffer *question, Buffer *reply, int timeout_ms)
{
    char *failure = NULL;
    int64_t deadline_ms = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    int heard = -1;
    errno = ECONNRESET;
    pthread_mutex_lock(&control->lock);
    for (int tries = 0; tries < MOST_TRIES && heard < 0 && was_closed(errno) && !question->failed; tries++)
        heard = ask_once(control, question, reply, deadline_ms);
    if (heard < 0)
        failure = explain(question->failed ? "out of memory" : strerror(errno));
    pthread_mutex_unlock(&control->lock);
    Misfit misfit;
    if (failure == NULL &&
        !message_fits((Reader){reply->data, reply->data + reply->size, false}, control_messages, &misfit))
        failure = texted("the dispatcher's answer is not understood: it sent %s", misfit.text);
    if (failure == NULL && reply_is(reply, FAILURE_NAME)) {
        failure = reply_text(reply, FAILURE_text);
        if (failure == NULL)
            failure = explain("it gave no reason");
    }
    return failure;
}

void control_tell(Control *control, const Buffer *message)
{
    uint8_t id[ID];
    bool sent = message->failed;
    errno = ECONNRESET;
    pthread_mutex_lock(&control->lock);
    for (int tries = 0; tries < MOST_TRIES && !sent && was_closed(errno); tries++) {
        sent = send_message(control, message, id, -1);
        int why = errno;
        if (!sent)
            hang_up(control);
        errno = why;
    }
    pthread_mutex_unlock(&control->lock);
}

bool reply_find(const Buffer *reply, const char *key, Reader *value)
{
    Reader reader = {reply->data, reply->data + reply->size, false};
    bool found = false;
    for (uint32_t pairs = get_map(&reader); pairs && !reader.malformed; pairs--) {
        if (text_is(get_text(&reader), key)) { /* the last one counts, as in msgspec */
            *value = reader;
            found = kind_of(&reader) != KIND_NIL;
        }
        skip(&reader, 0);
    }
    return found && !reader.malformed;
}

bool reply_is(const Buffer *reply, const char *type)
{
    Reader value;
    return reply_find(reply, "type", &value) && text_is(get_text(&value), type);
}

char *reply_text(const Buffer *reply, const char *key)
{
    Reader value;
    if (!reply_find(reply, key, &value))
        return NULL;
    Text text = get_text(&value);
    return value.malformed ? NULL : text_without_nul(text);
}

void put_message(Buffer *buffer, const char *type, uint32_t fields)
{
    put_map(buffer, 1 + fields);
    put_text_field(buffer, "type", type);
}

void put_text_field(Buffer *buffer, const char *key, const char *value)
{
    put_string(buffer, key);
    if (value)
        put_string(buffer, value);
    else
        put_nil(buffer);
}

void put_int_field(Buffer *buffer, const char *key, int64_t value)
{
    put_string(buffer, key);
    put_int(buffer, value);
}

void put_bool_field(Buffer *buffer, const char *key, bool value)
{
    put_string(buffer, key);
    put_bool(buffer, value);
}
