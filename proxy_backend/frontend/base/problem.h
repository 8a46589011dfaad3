/* An error for the client of a request, or of the server: one type for HTTP and gRPC. */
#ifndef PYTRITON_FRONTEND_BASE_PROBLEM_H
#define PYTRITON_FRONTEND_BASE_PROBLEM_H

#include "common/slice.h"

typedef enum {
    PROBLEM_NONE,
    PROBLEM_INVALID,     /* 400 INVALID_ARGUMENT */
    PROBLEM_FORBIDDEN,   /* 403 PERMISSION_DENIED, in HTTP; gRPC uses Triton's: UNAVAILABLE */
    PROBLEM_NOT_FOUND,   /* 404 NOT_FOUND */
    PROBLEM_METHOD,      /* 405 UNIMPLEMENTED */
    PROBLEM_SLOW,        /* 408 DEADLINE_EXCEEDED */
    PROBLEM_EXISTS,      /* 409 ALREADY_EXISTS */
    PROBLEM_TOO_LARGE,   /* 413 RESOURCE_EXHAUSTED */
    PROBLEM_TARGET,      /* 414, HTTP only */
    PROBLEM_MEDIA,       /* 415 INVALID_ARGUMENT: an unknown encoding */
    PROBLEM_EXPECTATION, /* 417, HTTP only */
    PROBLEM_TOO_MANY,    /* 429 RESOURCE_EXHAUSTED */
    PROBLEM_HEADERS,     /* 431 RESOURCE_EXHAUSTED */
    PROBLEM_CANCELLED,   /* 499 CANCELLED */
    PROBLEM_INTERNAL,    /* 500 INTERNAL */
    PROBLEM_UNSUPPORTED, /* 501 UNIMPLEMENTED */
    PROBLEM_UNAVAILABLE, /* 503 UNAVAILABLE */
    PROBLEM_STORAGE,     /* 507 RESOURCE_EXHAUSTED: no memory for a model */
    PROBLEM_UNKNOWN,     /* 400 UNKNOWN: a model's error without a kind */
    PROBLEM_VERSION,     /* 505, HTTP only */
    PROBLEM_ELSEWHERE, /* 503; gRPC: refused unprocessed (REFUSED_STREAM), so that clients retry */
    PROBLEM_MODEL_PENDING, /* 503 UNAVAILABLE: a model that is loaded because of the request; see core/pending_models.h */
} ProblemKind;

/* All zero: none. */
typedef struct {
    ProblemKind kind;
    char *text; /* for free(), valid UTF-8, at most PROBLEM_TEXT bytes; NULL: no memory for it */
    size_t pending_model; /* with PROBLEM_MODEL_PENDING: the model, pending_models.c's */
} Problem;

enum { PROBLEM_TEXT = 8192 }; /* room for a model's error, see pytriton/_protocol/errors.py */

/* Set the problem, replacing an earlier one. Returns false, for `return problem_set(...)`. */
__attribute__((format(printf, 3, 4))) bool problem_set(Problem *problem, ProblemKind kind, const char *format, ...);
/* Set the problem that there is no memory. Returns false. */
bool problem_no_memory(Problem *problem);
void problem_clear(Problem *problem);
/* Returns the text; never NULL. */
const char *problem_text(const Problem *problem);

/* Returns the HTTP status, its reason phrase, or the gRPC code. */
int problem_status(ProblemKind kind);
const char *http_status_reason(int status);
int problem_grpc_code(ProblemKind kind);

#endif
