#include "http/route_table.h"

#include "json/reader.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ROUTES = 1 << 16, MAX_ORIGINS = 1000, MAX_PAGE = 64 << 20 };

/* Immutable, and shared by the table and the requests that use it. */
struct Routes {
    atomic_uint references;
    Route *all; /* sorted by path */
    size_t count, room;
    char **origins;
    size_t origin_count;
    bool logs_errors;
};

struct RouteTable {
    pthread_mutex_t lock;
    Routes *current;
    atomic_bool has_routes, logs_errors; /* of the current ones */
};

static Routes *routes_new(void)
{
    Routes *routes = calloc(1, sizeof *routes);
    if (routes)
        routes->references = 1;
    return routes;
}

void routes_release(Routes *routes)
{
    if (routes == NULL || atomic_fetch_sub(&routes->references, 1) > 1)
        return;
    for (size_t i = 0; i < routes->count; i++) {
        const Route *route = &routes->all[i];
        free((char *)route->path);
        free((char *)route->type);
        free((char *)route->model);
        free((char *)route->policy);
        free((char *)route->content.start);
    }
    for (size_t i = 0; i < routes->origin_count; i++)
        free(routes->origins[i]);
    free(routes->origins);
    free(routes->all);
    free(routes);
}

RouteTable *route_table_new(void)
{
    RouteTable *table = calloc(1, sizeof *table);
    if (table == NULL)
        return NULL;
    table->current = routes_new();
    if (table->current == NULL || pthread_mutex_init(&table->lock, NULL) != 0) {
        routes_release(table->current);
        free(table);
        return NULL;
    }
    return table;
}

void route_table_free(RouteTable *table)
{
    if (table == NULL)
        return;
    routes_release(table->current);
    pthread_mutex_destroy(&table->lock);
    free(table);
}

/* ── finding ──────────────────────────────────────────────────────────────────────────────────────── */

/* Compare a path with the segments of a target. */
static int compare_target(const void *target, const void *route)
{
    const Target *wanted = target;
    const char *at = ((const Route *)route)->path;
    for (uint32_t i = 0; i < wanted->count; i++) {
        if (*at != '/')
            return 1;
        at++;
        Slice segment = wanted->segments[i];
        size_t size = strcspn(at, "/"), shorter = size < segment.size ? size : segment.size;
        int order = memcmp(segment.start, at, shorter);
        if (order)
            return order;
        if (size != segment.size)
            return segment.size < size ? -1 : 1;
        at += size;
    }
    return *at ? -1 : 0;
}

/* Order paths as compare_target does: segment by segment, so that "/a/b" precedes "/a-b". */
static int compare_routes(const void *one, const void *other)
{
    const char *left = ((const Route *)one)->path, *right = ((const Route *)other)->path;
    for (;; left++, right++) {
        if (*left == *right) {
            if (*left == '\0')
                return 0;
            continue;
        }
        if (*left == '\0' || (*left == '/' && *right))
            return -1;
        if (*right == '\0' || *right == '/')
            return 1;
        return (unsigned char)*left < (unsigned char)*right ? -1 : 1;
    }
}

const Route *route_table_find(RouteTable *table, const Target *target, Routes **routes)
{
    pthread_mutex_lock(&table->lock);
    Routes *current = table->current;
    atomic_fetch_add(&current->references, 1);
    pthread_mutex_unlock(&table->lock);
    const Route *found =
        current->count ? bsearch(target, current->all, current->count, sizeof *current->all, compare_target) : NULL;
    if (found)
        *routes = current;
    else
        routes_release(current);
    return found;
}

bool route_table_has_routes(RouteTable *table)
{
    return atomic_load_explicit(&table->has_routes, memory_order_relaxed);
}

bool route_table_logs_errors(RouteTable *table)
{
    return atomic_load_explicit(&table->logs_errors, memory_order_relaxed);
}

bool routes_allow_origin(const Routes *routes, Slice origin)
{
    for (size_t i = 0; i < routes->origin_count; i++)
        if (slice_is(origin, routes->origins[i]) || strcmp(routes->origins[i], "*") == 0)
            return true;
    return false;
}

/* ── reading the document ─────────────────────────────────────────────────────────────────────────── */

static bool read_file(const char *path, Slice *content, Problem *problem)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *data = NULL;
    size_t size = 0;
    if (fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= MAX_PAGE)
        data = malloc((size_t)about.st_size + 1);
    while (data) {
        ssize_t count = read(fd, data + size, (size_t)about.st_size - size);
        if (count <= 0)
            break;
        size += (size_t)count;
    }
    if (fd >= 0)
        close(fd);
    if (data == NULL || size != (size_t)about.st_size) {
        free(data);
        return problem_set(problem, PROBLEM_INVALID, "the page %s cannot be read", path);
    }
    *content = (Slice){data, size};
    return true;
}

static bool take_string(Json *json, const char **to, Problem *problem)
{
    Buffer text = {0};
    bool read = json_string_to(json, &text);
    const char *value = read ? buffer_string(&text) : NULL;
    if (value && strlen(value) == text.size && *to == NULL)
        return (*to = buffer_take(&text)) != NULL || problem_no_memory(problem);
    buffer_free(&text);
    return json_failed(json) ? false : problem_set(problem, PROBLEM_INVALID, "a route has an invalid member");
}

/* Returns whether a text may be the value of a header: it is not too long, and ends no line. */
static bool is_header(const char *text, size_t most)
{
    size_t size = 0;
    for (; text[size]; size++)
        if (size == most || text[size] < ' ' || text[size] > '~')
            return false;
    return size > 0;
}

static bool read_route(Json *json, Routes *routes, Problem *problem)
{
    if (routes->count == MAX_ROUTES)
        return problem_set(problem, PROBLEM_INVALID, "there are more than %d routes", MAX_ROUTES);
    if (routes->count == routes->room) {
        size_t room = routes->room ? 2 * routes->room : 16;
        Route *all = realloc(routes->all, room * sizeof *all);
        if (all == NULL)
            return problem_no_memory(problem);
        routes->all = all;
        routes->room = room;
    }
    Route *route = &routes->all[routes->count++];
    *route = (Route){0};
    const char *file = NULL;
    Buffer scratch = {0};
    Slice key;
    bool good = json_object(json);
    while (good && json_member(json, &scratch, &key)) {
        const char **to = slice_is(key, "path") ? &route->path
            : slice_is(key, "type")             ? &route->type
            : slice_is(key, "model")            ? &route->model
            : slice_is(key, "policy")           ? &route->policy
            : slice_is(key, "file")             ? &file
                                                : NULL;
        if (to)
            good = take_string(json, to, problem);
        else if (slice_is(key, "streams"))
            good = json_bool(json, &route->streams);
        else if (slice_is(key, "put"))
            good = json_bool(json, &route->takes_put);
        else
            good = json_skip(json);
    }
    buffer_free(&scratch);
    good = good && !json_failed(json) && route->path && route->path[0] == '/' && route->type &&
        is_header(route->type, ROUTE_TYPE_SIZE) &&
        (route->policy == NULL || is_header(route->policy, ROUTE_POLICY_SIZE)) &&
        (route->model != NULL) != (file != NULL);
    if (good && file)
        good = read_file(file, &route->content, problem);
    free((char *)file);
    return good || problem->kind != PROBLEM_NONE || json_failed(json)
        ? good
        : problem_set(problem, PROBLEM_INVALID, "a route is incomplete, or has an invalid member");
}

static bool read_origin(Json *json, Routes *routes, Problem *problem)
{
    const char *origin = NULL;
    if (routes->origins == NULL)
        routes->origins = calloc(MAX_ORIGINS, sizeof *routes->origins);
    if (routes->origins == NULL)
        return problem_no_memory(problem);
    if (routes->origin_count == MAX_ORIGINS)
        return problem_set(problem, PROBLEM_INVALID, "there are more than %d origins", MAX_ORIGINS);
    if (!take_string(json, &origin, problem))
        return false;
    routes->origins[routes->origin_count++] = (char *)origin;
    return true;
}

static bool read_routes(Json *json, Routes *routes, Problem *problem)
{
    Buffer scratch = {0};
    Slice key;
    bool good = json_object(json);
    while (good && json_member(json, &scratch, &key)) {
        bool is_origins = slice_is(key, "origins");
        if (slice_is(key, "log_errors")) {
            good = json_bool(json, &routes->logs_errors);
            continue;
        }
        if (!is_origins && !slice_is(key, "routes") && !slice_is(key, "pages")) {
            good = json_skip(json);
            continue;
        }
        good = json_array(json);
        while (good && json_element(json))
            good = is_origins ? read_origin(json, routes, problem) : read_route(json, routes, problem);
    }
    buffer_free(&scratch);
    if (good && json_end(json))
        return true;
    if (json_failed(json))
        return json_problem(json, "the routes", problem);
    return problem->kind == PROBLEM_NONE
        ? problem_set(problem, PROBLEM_INVALID, "the routes are not a JSON object of arrays")
        : false;
}

static bool has_duplicates(const Routes *routes)
{
    for (size_t i = 1; i < routes->count; i++)
        if (strcmp(routes->all[i - 1].path, routes->all[i].path) == 0)
            return true;
    return false;
}

bool route_table_replace(RouteTable *table, Slice document, Problem *problem)
{
    JsonLimits limits = {8, 1 << 24, 1 << 20};
    Json json = json_read(document, &limits);
    Routes *routes = routes_new();
    if (routes == NULL)
        return problem_no_memory(problem);
    bool good = read_routes(&json, routes, problem);
    if (good && routes->count) {
        qsort(routes->all, routes->count, sizeof *routes->all, compare_routes);
        good = !has_duplicates(routes) || problem_set(problem, PROBLEM_INVALID, "two routes have the same path");
    }
    if (!good) {
        routes_release(routes);
        return false;
    }
    pthread_mutex_lock(&table->lock);
    Routes *former = table->current;
    table->current = routes;
    atomic_store(&table->has_routes, routes->count > 0);
    atomic_store(&table->logs_errors, routes->logs_errors);
    pthread_mutex_unlock(&table->lock);
    routes_release(former);
    return true;
}
