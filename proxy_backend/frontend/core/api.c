#define _GNU_SOURCE
#include "core/api.h"

#include "base/log.h"
#include "common/buffer.h"

#include <dlfcn.h>

Api triton;

#define API_NAME(returned, name, parameters) "TRITONSERVER_" #name,
static const char *const names[] = {API_FUNCTIONS(API_NAME)};
#undef API_NAME

enum { FUNCTIONS = sizeof names / sizeof *names };

/* The table has to consist of function pointers only, in the order of their names. */
_Static_assert(sizeof(Api) == FUNCTIONS * sizeof(void (*)(void)), "one pointer for each name");

/* Write a core's version, for the error that it lacks a function. */
static void put_version(Buffer *text, void *core)
{
    TRITONSERVER_Error *(*version)(uint32_t *, uint32_t *);
    void *found = dlsym(core, "TRITONSERVER_ApiVersion");
    memcpy(&version, &found, sizeof version);
    uint32_t major = 0, minor = 0;
    if (found && version(&major, &minor) == NULL)
        buffer_format(text, " (its API is %u.%u; %d.%d has all)", major, minor, API_MAJOR, API_MINOR);
}

/* Resolve all functions of a loaded core. */
static bool find_all(void *core, const char *library, Problem *problem)
{
    Buffer lacking = {0};
    for (size_t i = 0; i < FUNCTIONS; i++) {
        /* Search the whole process instead of the core: the interposer's functions take precedence
         * (interposer/interposer.c).
         */
        void *found = dlsym(RTLD_DEFAULT, names[i]);
        if (found == NULL)
            buffer_format(&lacking, "%s%s", lacking.size ? ", " : "", names[i]);
        memcpy((char *)&triton + i * sizeof found, &found, sizeof found);
    }
    bool complete = lacking.size == 0 && !lacking.failed;
    if (!complete) {
        put_version(&lacking, core);
        problem_set(problem, PROBLEM_UNSUPPORTED, "%s lacks %.*s", library, SLICE_ARGS(buffer_slice(&lacking)));
    }
    buffer_free(&lacking);
    return complete;
}

bool api_load(const char *library, Problem *problem)
{
    /* RTLD_GLOBAL, because backends look up the core's functions in the process. RTLD_NODELETE, because the core's
     * threads end only after it has reported that it has stopped.
     */
    void *core = dlopen(library, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (core == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "cannot load Triton's core: %s", dlerror());
    if (!find_all(core, library, problem))
        return false;
    uint32_t major = 0, minor = 0;
    if (!api_succeeded(triton.ApiVersion(&major, &minor), problem))
        return false;
    if (major != API_MAJOR)
        return problem_set(problem, PROBLEM_UNSUPPORTED,
            "%s has version %u.%u of Triton's API, and this frontend is for version %d", library, major, minor,
            API_MAJOR);
    if (minor < API_MINOR)
        log_info(
            "%s has version %u.%u of Triton's API instead of %d.%d, but has all functions that this frontend needs",
            library, major, minor, API_MAJOR, API_MINOR);
    return true;
}

/* Problem kinds by error code of the API. */
static const ProblemKind kinds[] = {
    [TRITON_ERROR_UNKNOWN] = PROBLEM_UNKNOWN,
    [TRITON_ERROR_INTERNAL] = PROBLEM_INTERNAL,
    [TRITON_ERROR_NOT_FOUND] = PROBLEM_NOT_FOUND,
    [TRITON_ERROR_INVALID_ARG] = PROBLEM_INVALID,
    [TRITON_ERROR_UNAVAILABLE] = PROBLEM_UNAVAILABLE,
    [TRITON_ERROR_UNSUPPORTED] = PROBLEM_UNSUPPORTED,
    [TRITON_ERROR_ALREADY_EXISTS] = PROBLEM_EXISTS,
    [TRITON_ERROR_CANCELLED] = PROBLEM_CANCELLED,
};

bool api_check_borrowed(TRITONSERVER_Error *error, Problem *problem)
{
    if (error == NULL)
        return true;
    int code = triton.ErrorCode(error);
    bool known = code >= 0 && (size_t)code < sizeof kinds / sizeof *kinds;
    return problem_set(problem, known ? kinds[code] : PROBLEM_INTERNAL, "%s", triton.ErrorMessage(error));
}

bool api_succeeded(TRITONSERVER_Error *error, Problem *problem)
{
    if (error == NULL)
        return true;
    api_check_borrowed(error, problem);
    triton.ErrorDelete(error);
    return false;
}

void api_ignore(TRITONSERVER_Error *error, const char *doing)
{
    if (error == NULL)
        return;
    log_error("%s: %s", doing, triton.ErrorMessage(error));
    triton.ErrorDelete(error);
}

TRITONSERVER_Error *api_error(Problem *problem)
{
    int code = TRITON_ERROR_INTERNAL;
    for (int one = TRITON_ERROR_INTERNAL; one <= TRITON_ERROR_CANCELLED; one++)
        if (kinds[one] == problem->kind)
            code = one;
    if (problem->kind == PROBLEM_TOO_LARGE || problem->kind == PROBLEM_TOO_MANY)
        code = TRITON_ERROR_UNAVAILABLE;
    TRITONSERVER_Error *error = triton.ErrorNew(code, problem_text(problem));
    problem_clear(problem);
    return error;
}

static const struct {
    const char *name;
    size_t size;
} datatypes[TYPE_COUNT] = {[TYPE_INVALID] = {"<invalid>", 0},
#define DATATYPE(code, name, size) [TYPE_##name] = {#name, (size)},
    DATATYPES(DATATYPE)
#undef DATATYPE
};

DataType datatype_named(Slice name)
{
    for (DataType type = TYPE_INVALID + 1; type < TYPE_COUNT; type++)
        if (slice_is(name, datatypes[type].name))
            return type;
    return TYPE_INVALID;
}

const char *datatype_name(DataType datatype)
{
    return datatypes[datatype < TYPE_COUNT ? datatype : TYPE_INVALID].name;
}

size_t datatype_size(DataType datatype)
{
    return datatype < TYPE_COUNT ? datatypes[datatype].size : 0;
}
