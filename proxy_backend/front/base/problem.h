/* What is wrong with a request, or with the server, in words for its client: one type for HTTP and gRPC. */
#ifndef PYTRITON_FRONT_PROBLEM_H
#define PYTRITON_FRONT_PROBLEM_H

#include "base/slice.h"

typedef enum {
    PROBLEM_NONE,
    PROBLEM_INVALID,     /* 400 INVALID_ARGUMENT */
    PROBLEM_FORBIDDEN,   /* 403 PERMISSION_DENIED, in HTTP; gRPC as Triton says it: UNAVAILABLE */
    PROBLEM_NOT_FOUND,   /* 404 NOT_FOUND */
    PROBLEM_METHOD,      /* 405 UNIMPLEMENTED */
    PROBLEM_SLOW,        /* 408 DEADLINE_EXCEEDED */
    PROBLEM_EXISTS,      /* 409 ALREADY_EXISTS */
    PROBLEM_TOO_LARGE,   /* 413 RESOURCE_EXHAUSTED */
    PROBLEM_TARGET,      /* 414, of HTTP only */
    PROBLEM_MEDIA,       /* 415 INVALID_ARGUMENT: an encoding that is not known */
    PROBLEM_EXPECTATION, /* 417, of HTTP only */
    PROBLEM_TOO_MANY,    /* 429 RESOURCE_EXHAUSTED */
    PROBLEM_HEADERS,     /* 431 RESOURCE_EXHAUSTED */
    PROBLEM_CANCELLED,   /* 499 CANCELLED */
    PROBLEM_INTERNAL,    /* 500 INTERNAL */
    PROBLEM_UNSUPPORTED, /* 501 UNIMPLEMENTED */
    PROBLEM_UNAVAILABLE, /* 503 UNAVAILABLE */
    PROBLEM_STORAGE,     /* 507 RESOURCE_EXHAUSTED: there is no memory for a model */
    PROBLEM_UNKNOWN,     /* 400 UNKNOWN: a model does not say what kind of an error it is */
    PROBLEM_VERSION,     /* 505, of HTTP only */
    PROBLEM_ELSEWHERE, /* 503; of gRPC, the call is refused unseen (REFUSED_STREAM): clients make it again, on another connection */
    PROBLEM_AWAITED, /* 503 UNAVAILABLE: a model that comes, now that it was asked for; see core/awaited.h */
} ProblemKind;

/* All zero: there is none. */
typedef struct {
    ProblemKind kind;
    char *text; /* for free(), valid UTF-8, at most PROBLEM_TEXT bytes; NULL: there was no memory for it */
    size_t awaited; /* of PROBLEM_AWAITED: which model, awaited.c's */
} Problem;

enum { PROBLEM_TEXT = 8192 }; /* room for what a model says, see pytriton/_protocol/errors.py */

/* Say what is wrong; an earlier one is replaced. Returns false, for `return problem_set(...)`. */
__attribute__((format(printf, 3, 4))) bool problem_set(Problem *problem, ProblemKind kind, const char *format, ...);
/* There is no memory. Returns false. */
bool problem_no_memory(Problem *problem);
void problem_clear(Problem *problem);
/* The words; never NULL. */
const char *problem_text(const Problem *problem);

/* The status of HTTP, and its reason; the code of gRPC. */
int problem_status(ProblemKind kind);
const char *status_reason(int status);
int problem_grpc_code(ProblemKind kind);

#endif
