/* Routes load and unload requests of the model repository extension to the dispatcher.
 *
 * This library is preloaded (LD_PRELOAD) into the program around Triton's core, which is NVIDIA's or ours. Its functions
 * shadow the core's functions with the same names, so HTTP and gRPC requests reach them alike. It asks the dispatcher
 * over the unix socket at $PYTRITON_MODEL_CONTROL. The dispatcher either carries out the request, or leaves it to the
 * core, for example if the request came from the dispatcher itself.
 *
 * A message is the number of its strings, followed by the strings, each after its size. All numbers have 64 bits. A
 * request consists of the action, the model, "dependents" or "", and a name and a value for each parameter. A reply is
 * "core", or "done", or an error code of Triton's API and the error's text.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define SOCKET_VARIABLE "PYTRITON_MODEL_CONTROL"

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_Parameter TRITONSERVER_Parameter;

EXPORTED TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value);
EXPORTED TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *bytes, uint64_t size);
EXPORTED void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter);
EXPORTED TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *server, const char *model);
EXPORTED TRITONSERVER_Error *TRITONSERVER_ServerLoadModelWithParameters(
    TRITONSERVER_Server *server, const char *model, const TRITONSERVER_Parameter **parameters, uint64_t count);
EXPORTED TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *server, const char *model);
EXPORTED TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(
    TRITONSERVER_Server *server, const char *model);

enum { TYPE_STRING = 0, ERROR_INTERNAL = 1, ERROR_UNAVAILABLE = 4 };
enum { REPLY_STRINGS = 2, MAX_REPLY = 1 << 20 };
/* Retry connecting: while the dispatcher is upgraded in place, it does not listen for a moment. */
enum { CONNECT_TRIES = 200, CONNECT_PAUSE_MS = 50 };

/* Look up the core's own function with this name. */
#define CORE(function, name)                                                                                           \
    do {                                                                                                               \
        void *found = dlsym(RTLD_NEXT, name);                                                                          \
        memcpy(&(function), &found, sizeof found);                                                                     \
    } while (0)

/* ── parameters: their objects are opaque, so their contents are recorded here ──────────────────── */

typedef struct Known {
    const TRITONSERVER_Parameter *parameter;
    char *name, *value;
    uint64_t size;
    struct Known *next;
} Known;

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static Known *all_known;

static void remember(const TRITONSERVER_Parameter *parameter, const char *name, const void *value, uint64_t size)
{
    Known *known = parameter ? calloc(1, sizeof *known) : NULL;
    if (known == NULL)
        return;
    known->parameter = parameter;
    known->name = strdup(name);
    known->value = malloc(size + 1);
    known->size = size;
    if (known->value && size)
        memcpy(known->value, value, size);
    pthread_mutex_lock(&known_lock);
    known->next = all_known;
    all_known = known;
    pthread_mutex_unlock(&known_lock);
}

static void forget(const TRITONSERVER_Parameter *parameter)
{
    pthread_mutex_lock(&known_lock);
    Known **place = &all_known;
    while (*place && (*place)->parameter != parameter)
        place = &(*place)->next;
    Known *known = *place;
    if (known)
        *place = known->next;
    pthread_mutex_unlock(&known_lock);
    if (known == NULL)
        return;
    free(known->name);
    free(known->value);
    free(known);
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value)
{
    TRITONSERVER_Parameter *(*core)(const char *, int, const void *);
    CORE(core, "TRITONSERVER_ParameterNew");
    TRITONSERVER_Parameter *parameter = core(name, type, value);
    /* Record the parameters of a load. Metrics and traces have parameters, too. */
    if (type == TYPE_STRING && strcmp(name, "config") == 0)
        remember(parameter, name, value, strlen(value));
    return parameter;
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *bytes, uint64_t size)
{
    TRITONSERVER_Parameter *(*core)(const char *, const void *, uint64_t);
    CORE(core, "TRITONSERVER_ParameterBytesNew");
    TRITONSERVER_Parameter *parameter = core(name, bytes, size);
    remember(parameter, name, bytes, size);
    return parameter;
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter)
{
    void (*core)(TRITONSERVER_Parameter *);
    CORE(core, "TRITONSERVER_ParameterDelete");
    forget(parameter);
    core(parameter);
}

/* ── the dispatcher ─────────────────────────────────────────────────────────────────────────────── */

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

static bool send_string(int fd, const void *bytes, uint64_t size)
{
    return send_all(fd, &size, sizeof size) && send_all(fd, bytes, size);
}

static bool receive_all(int fd, void *bytes, size_t size)
{
    char *next = bytes;
    while (size) {
        ssize_t received = recv(fd, next, size, 0);
        if (received < 0 && errno == EINTR)
            continue;
        if (received <= 0)
            return false;
        next += received;
        size -= (size_t)received;
    }
    return true;
}

/* Receive a string for free(). Returns NULL on failure. */
static char *receive_string(int fd)
{
    uint64_t size;
    if (!receive_all(fd, &size, sizeof size) || size > MAX_REPLY)
        return NULL;
    char *text = calloc(1, size + 1);
    if (text && receive_all(fd, text, size))
        return text;
    free(text);
    return NULL;
}

static bool connect_once(int fd, const char *path)
{
    const char *name = strrchr(path, '/');
    char *folder = name ? strndup(path, (size_t)(name - path)) : NULL;
    int place = folder ? open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    bool connected = false;
    if (place >= 0) {
        /* Use a short path to the same socket, because the original may be too long for sun_path. */
        int size = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", place, name);
        connected =
            size < (int)sizeof address.sun_path && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(place);
    }
    free(folder);
    return connected;
}

static int connect_to(const char *path)
{
    for (int tries = 0; tries < CONNECT_TRIES; tries++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        if (connect_once(fd, path))
            return fd;
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = CONNECT_PAUSE_MS * 1000000L}, NULL);
    }
    return -1;
}

typedef struct {
    const char *action, *model, *which;
    const TRITONSERVER_Parameter **parameters;
    uint64_t count;
} Request;

static bool send_request(int fd, const Request *request)
{
    uint64_t strings = 3 + 2 * request->count;
    bool sent = send_all(fd, &strings, sizeof strings) && send_string(fd, request->action, strlen(request->action)) &&
        send_string(fd, request->model, strlen(request->model)) &&
        send_string(fd, request->which, strlen(request->which));
    /* Lock the list: the parameters of this load stay, but other threads may delete theirs. */
    pthread_mutex_lock(&known_lock);
    for (uint64_t i = 0; sent && i < request->count; i++) {
        const Known *known = all_known;
        while (known && known->parameter != request->parameters[i])
            known = known->next;
        sent = known && known->name && known->value && send_string(fd, known->name, strlen(known->name)) &&
            send_string(fd, known->value, known->size);
    }
    pthread_mutex_unlock(&known_lock);
    return sent;
}

static TRITONSERVER_Error *error_of(int code, const char *text)
{
    TRITONSERVER_Error *(*core)(int, const char *);
    CORE(core, "TRITONSERVER_ErrorNew");
    return core(code, text);
}

/* Returns whether the dispatcher has handled the request. `error` is then the result. */
static bool ask_dispatcher(const Request *request, TRITONSERVER_Error **error)
{
    const char *path = getenv(SOCKET_VARIABLE);
    if (path == NULL || *path == '\0')
        return false;
    int fd = connect_to(path);
    uint64_t strings = 0;
    char *status = NULL, *text = NULL;
    if (fd >= 0 && send_request(fd, request) && receive_all(fd, &strings, sizeof strings) && strings == REPLY_STRINGS) {
        status = receive_string(fd);
        text = status ? receive_string(fd) : NULL;
    }
    if (fd >= 0)
        close(fd);
    bool is_core = text && strcmp(status, "core") == 0;
    *error = NULL;
    if (text == NULL)
        *error = error_of(
            ERROR_UNAVAILABLE, "the dispatcher of pytriton-daemon, which loads and unloads models, does not answer");
    else if (!is_core && strcmp(status, "done") != 0) {
        char *end;
        long code = strtol(status, &end, 10);
        *error = error_of(*end || code < 0 || code > INT32_MAX ? ERROR_INTERNAL : (int)code, text);
    }
    free(status);
    free(text);
    return !is_core;
}

/* ── replacements for the core's functions ──────────────────────────────────────────────────────── */

TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *server, const char *model)
{
    TRITONSERVER_Error *error, *(*core)(TRITONSERVER_Server *, const char *);
    if (ask_dispatcher(&(Request){"load", model, "", NULL, 0}, &error))
        return error;
    CORE(core, "TRITONSERVER_ServerLoadModel");
    return core(server, model);
}

TRITONSERVER_Error *TRITONSERVER_ServerLoadModelWithParameters(
    TRITONSERVER_Server *server, const char *model, const TRITONSERVER_Parameter **parameters, uint64_t count)
{
    TRITONSERVER_Error *error, *(*core)(TRITONSERVER_Server *, const char *, const TRITONSERVER_Parameter **, uint64_t);
    if (ask_dispatcher(&(Request){"load", model, "", parameters, count}, &error))
        return error;
    CORE(core, "TRITONSERVER_ServerLoadModelWithParameters");
    return core(server, model, parameters, count);
}

TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *server, const char *model)
{
    TRITONSERVER_Error *error, *(*core)(TRITONSERVER_Server *, const char *);
    if (ask_dispatcher(&(Request){"unload", model, "", NULL, 0}, &error))
        return error;
    CORE(core, "TRITONSERVER_ServerUnloadModel");
    return core(server, model);
}

TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server *server, const char *model)
{
    TRITONSERVER_Error *error, *(*core)(TRITONSERVER_Server *, const char *);
    if (ask_dispatcher(&(Request){"unload", model, "dependents", NULL, 0}, &error))
        return error;
    CORE(core, "TRITONSERVER_ServerUnloadModelAndDependents");
    return core(server, model);
}

/* Remove this library from LD_PRELOAD, so that child processes (stubs of Triton's python backend) do not load it. */
__attribute__((constructor)) static void be_alone(void)
{
    Dl_info self;
    const char *given = getenv("LD_PRELOAD");
    if (given == NULL || dladdr((void *)&all_known, &self) == 0)
        return;
    size_t size = strlen(self.dli_fname);
    if (strncmp(given, self.dli_fname, size) != 0)
        return;
    if (given[size] == ':') {
        char *rest = strdup(given + size + 1);
        setenv("LD_PRELOAD", rest ? rest : "", 1);
        free(rest);
    } else if (given[size] == '\0') {
        unsetenv("LD_PRELOAD");
    }
}
