#define _GNU_SOURCE
#include "startup/settings.h"

#include "common/buffer.h"
#include "json/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_DOCUMENT_BYTES = 16 << 20, MAX_LOOPS = 64 };

/* The document that is being parsed. Each of the functions below reads one value, and returns false if the value has
 * the wrong kind.
 */
typedef struct {
    Json json;
    Buffer scratch;
    Problem *problem;
    const char *at; /* name of the current member, for the error */
} Source;

typedef bool (*ReadMember)(Source *source, void *to);
typedef struct {
    const char *name;
    ReadMember read;
    size_t offset;
} Member;

/* Read the members of an object to their offsets from `to`. null counts as absent. */
static bool read_members(Source *source, const Member *members, size_t count, void *to)
{
    Slice key;
    if (!json_object(&source->json))
        return false;
    while (json_member(&source->json, &source->scratch, &key)) {
        size_t i = 0;
        while (i < count && !slice_is(key, members[i].name))
            i++;
        if (i == count)
            return false;
        source->at = members[i].name;
        if (!json_null(&source->json) && !members[i].read(source, (char *)to + members[i].offset))
            return false;
    }
    return !json_failed(&source->json);
}

static bool read_string(Source *source, void *to)
{
    Slice value;
    if (!json_string(&source->json, &source->scratch, &value) || memchr(value.start, 0, value.size))
        return false;
    *(char **)to = slice_copy(value);
    return *(char **)to != NULL;
}

static bool read_unsigned(Source *source, void *to)
{
    return json_unsigned(&source->json, to);
}

static bool read_fd(Source *source, void *to)
{
    uint64_t value;
    if (!json_unsigned(&source->json, &value) || value > 1 << 20)
        return false;
    *(int *)to = (int)value;
    return true;
}

static bool read_bool(Source *source, void *to)
{
    return json_bool(&source->json, to);
}

/* Append a zeroed element to an array. Returns the element, or NULL without memory. */
static void *append_zeroed(void *array, size_t *count, size_t size)
{
    char **all = array;
    char *grown = reallocarray(*all, *count + 1, size);
    if (grown == NULL)
        return NULL;
    *all = grown;
    char *element = grown + *count * size;
    memset(element, 0, size);
    ++*count;
    return element;
}

static bool read_libraries(Source *source, void *to)
{
    static const Member members[] = {
        {"nghttp2", read_string, offsetof(Settings, nghttp2)},
        {"ssl", read_string, offsetof(Settings, ssl)},
        {"crypto", read_string, offsetof(Settings, crypto)},
        {"z", read_string, offsetof(Settings, z)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

static bool read_options(Source *source, void *to)
{
    Settings *settings = to;
    if (!json_array(&source->json))
        return false;
    while (json_element(&source->json)) {
        Option *option = append_zeroed(&settings->options, &settings->option_count, sizeof *option);
        if (option == NULL || !json_array(&source->json))
            return false;
        if (!json_element(&source->json) || !read_string(source, &option->name) || !json_element(&source->json) ||
            !read_string(source, &option->value) || json_element(&source->json))
            return false;
    }
    return true;
}

static bool read_tls(Source *source, void *to)
{
    static const Member members[] = {
        {"certificate", read_string, offsetof(TlsFiles, certificate)},
        {"key", read_string, offsetof(TlsFiles, key)},
        {"root", read_string, offsetof(TlsFiles, root)},
        {"mutual", read_bool, offsetof(TlsFiles, mutual)},
    };
    ListenSetting *listen = to;
    listen->has_tls = true;
    return read_members(source, members, sizeof members / sizeof *members, &listen->tls) && listen->tls.certificate &&
        listen->tls.key;
}

static bool read_listen(Source *source, void *to)
{
    static const Member members[] = {
        {"fd", read_fd, offsetof(ListenSetting, fd)},
        {"protocol", read_string, offsetof(ListenSetting, protocol)},
        {"tls", read_tls, 0},
        {"relays", read_bool, offsetof(ListenSetting, relays)},
    };
    Settings *settings = to;
    if (!json_array(&source->json))
        return false;
    while (json_element(&source->json)) {
        ListenSetting *listen = append_zeroed(&settings->listen, &settings->listen_count, sizeof *listen);
        if (listen == NULL)
            return false;
        listen->fd = -1;
        if (!read_members(source, members, sizeof members / sizeof *members, listen) || listen->fd < 0 ||
            listen->protocol == NULL)
            return false;
    }
    return true;
}

static bool read_limits(Source *source, void *to)
{
    Slice key;
    if (!json_object(&source->json))
        return false;
    while (json_member(&source->json, &source->scratch, &key)) {
        double value;
        if (!json_double(&source->json, &value) || !limits_set(to, key, value, source->problem))
            return false;
    }
    return true;
}

/* Read [["api", ...], "header", "value"] as one restriction per API. */
static bool read_restriction(Source *source, RestrictionSettings *all)
{
    size_t first = all->count;
    const char *header = NULL, *value = NULL;
    if (!json_array(&source->json) || !json_element(&source->json) || !json_array(&source->json))
        return false;
    while (json_element(&source->json)) {
        RestrictionSetting *one = append_zeroed(&all->all, &all->count, sizeof *one);
        if (one == NULL || !read_string(source, &one->api))
            return false;
    }
    if (!json_element(&source->json) || !read_string(source, &header) || !json_element(&source->json) ||
        !read_string(source, &value) || json_element(&source->json))
        return false;
    for (size_t i = first; i < all->count; i++) {
        all->all[i].header = header;
        all->all[i].value = value;
    }
    return true;
}

static bool read_restrictions(Source *source, void *to)
{
    if (!json_array(&source->json))
        return false;
    while (json_element(&source->json)) {
        if (!read_restriction(source, to))
            return false;
    }
    return true;
}

static bool read_restricted(Source *source, void *to)
{
    static const Member members[] = {
        {"http", read_restrictions, offsetof(Settings, http_restricted)},
        {"grpc", read_restrictions, offsetof(Settings, grpc_restricted)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

static bool read_forward(Source *source, void *to)
{
    static const Member members[] = {
        {"http", read_string, offsetof(Settings, http_forward)},
        {"grpc", read_string, offsetof(Settings, grpc_forward)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

/* Keep a value as it is. */
static bool read_document(Source *source, void *to)
{
    Slice text;
    if (!json_raw(&source->json, &text))
        return false;
    char *copy = slice_copy(text);
    *(Slice *)to = (Slice){copy, text.size};
    return copy != NULL;
}

static bool read_vertex(Source *source, void *to)
{
    static const Member members[] = {
        {"health", read_string, offsetof(Settings, vertex_health)},
        {"predict", read_string, offsetof(Settings, vertex_predict)},
        {"model", read_string, offsetof(Settings, vertex_model)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

static bool read_sagemaker(Source *source, void *to)
{
    static const Member members[] = {
        {"model", read_string, offsetof(Settings, sagemaker_model)},
        {"folder", read_string, offsetof(Settings, sagemaker_folder)},
        {"inference", read_string, offsetof(Settings, sagemaker_inference)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

static bool read_names(Source *source, void *to)
{
    PendingModelNames *names = to;
    if (!json_array(&source->json))
        return false;
    while (json_element(&source->json)) {
        char **name = append_zeroed(&names->all, &names->count, sizeof *name);
        if (name == NULL || !read_string(source, name))
            return false;
    }
    return true;
}

static bool read_pending_models(Source *source, void *to)
{
    static const Member members[] = {
        {"names", read_names, offsetof(PendingModelsSettings, names)},
        {"loading", read_names, offsetof(PendingModelsSettings, starting)},
        {"fd", read_fd, offsetof(PendingModelsSettings, fd)},
        {"wait_s", read_unsigned, offsetof(PendingModelsSettings, wait_s)},
        {"max_waiters", read_unsigned, offsetof(PendingModelsSettings, max_waiters)},
    };
    return read_members(source, members, sizeof members / sizeof *members, to);
}

static const Member document[] = {
    {"core", read_string, offsetof(Settings, core)},
    {"libraries", read_libraries, 0},
    {"options", read_options, 0},
    {"loops", read_unsigned, offsetof(Settings, loops)},
    {"response_cache_bytes", read_unsigned, offsetof(Settings, response_cache_bytes)},
    {"listen", read_listen, 0},
    {"limits", read_limits, offsetof(Settings, limits)},
    {"restricted", read_restricted, 0},
    {"forward", read_forward, 0},
    {"routes", read_document, offsetof(Settings, routes)},
    {"vertex", read_vertex, 0},
    {"sagemaker", read_sagemaker, 0},
    {"not_ready", read_bool, offsetof(Settings, not_ready)},
    {"not_accepting", read_bool, offsetof(Settings, not_accepting)},
    {"pending_models", read_pending_models, offsetof(Settings, pending_models)},
    {"regions_fd", read_fd, offsetof(Settings, regions_fd)},
    {"ready_fd", read_fd, offsetof(Settings, ready_fd)},
};

static bool parse(Slice text, Settings *settings, Problem *problem)
{
    const JsonLimits limits = {.depth = 16, .values = 1 << 20, .string_bytes = MAX_DOCUMENT_BYTES};
    Source source = {.json = json_read(text, &limits), .problem = problem, .at = "the document"};
    *settings =
        (Settings){.loops = 1, .limits = limits_default(), .pending_models.fd = -1, .regions_fd = -1, .ready_fd = -1};
    bool good = read_members(&source, document, sizeof document / sizeof *document, settings);
    buffer_free(&source.scratch);
    if (json_failed(&source.json) || (good && !json_end(&source.json)))
        return json_problem(&source.json, "the settings", problem);
    if (problem->kind != PROBLEM_NONE)
        return false;
    if (!good)
        return problem_set(problem, PROBLEM_INVALID, "the settings are invalid at or after \"%s\"", source.at);
    if (settings->core == NULL)
        return problem_set(problem, PROBLEM_INVALID, "the settings lack \"core\"");
    if (settings->loops < 1 || settings->loops > MAX_LOOPS)
        return problem_set(problem, PROBLEM_INVALID, "the settings: \"loops\" must be 1 to %d", MAX_LOOPS);
    return true;
}

bool settings_read(int fd, Settings *settings, Problem *problem)
{
    Buffer text = {0};
    ssize_t count;
    do {
        char *to = text.size < MAX_DOCUMENT_BYTES && buffer_reserve(&text, 4096) ? text.data + text.size : NULL;
        if (to == NULL) {
            buffer_free(&text);
            return problem_set(problem, PROBLEM_INVALID, "the settings are too long");
        }
        count = read(fd, to, 4096);
        if (count > 0)
            text.size += (size_t)count;
    } while (count > 0 || (count < 0 && errno == EINTR));
    if (count < 0)
        problem_set(problem, PROBLEM_INVALID, "cannot read the settings from descriptor %d: %s", fd, strerror(errno));
    close(fd);
    bool good = count == 0 && parse(buffer_slice(&text), settings, problem);
    if (text.data)
        explicit_bzero(text.data, text.size); /* The text contains access tokens. */
    buffer_free(&text);
    return good;
}
