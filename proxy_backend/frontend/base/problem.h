/* An error to report to a client, or in the log. The same type is used for HTTP and gRPC. */
#ifndef PYTRITON_FRONTEND_BASE_PROBLEM_H
#define PYTRITON_FRONTEND_BASE_PROBLEM_H

#include "common/slice.h"

typedef enum {
    PROBLEM_NONE,
    PROBLEM_INVALID,     /* 400 INVALID_ARGUMENT */
    PROBLEM_FORBIDDEN,   /* 403 PERMISSION_DENIED in HTTP; UNAVAILABLE in gRPC, like Triton */
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
    PROBLEM_ELSEWHERE, /* 503; in gRPC, REFUSED_STREAM, after which clients retry */
    PROBLEM_MODEL_PENDING, /* 503 UNAVAILABLE: the model is being loaded for this request; see core/pending_models.h */
} ProblemKind;

/* A problem of all zeros is none. */
typedef struct {
    ProblemKind kind;
    char *text; /* for free(), valid UTF-8, at most PROBLEM_TEXT bytes; NULL without memory */
    size_t pending_model; /* index of the model for PROBLEM_MODEL_PENDING, used by pending_models.c */
} Problem;

enum { PROBLEM_TEXT = 8192 }; /* enough for a model's error, see pytriton/_protocol/errors.py */

/* Set the problem, replacing any earlier one. Returns false, so that callers can return the result. */
__attribute__((format(printf, 3, 4))) bool problem_set(Problem *problem, ProblemKind kind, const char *format, ...);
/* Set the problem of lacking memory. Returns false. */
bool problem_no_memory(Problem *problem);
void problem_clear(Problem *problem);
/* Returns the text, which is never NULL. */
const char *problem_text(const Problem *problem);

/* Returns the HTTP status of a problem. The others return the reason phrase of a status, and the gRPC code. */
int problem_status(ProblemKind kind);
const char *http_status_reason(int status);
int problem_grpc_code(ProblemKind kind);

#endif
