/* How much clients may have of everything, and how often one of them wanted more. */
#ifndef PYTRITON_FRONT_LIMITS_H
#define PYTRITON_FRONT_LIMITS_H

#include "base/problem.h"

/* Of the settings: times in milliseconds. 0 of a limit that says so: there is none. */
typedef struct {
    uint64_t header_bytes; /* of a request's line and headers, of a gRPC call's metadata */
    uint64_t headers;      /* how many */
    uint64_t body_bytes;   /* of a request's body, also when it has been unpacked; of a gRPC message */
    uint64_t unpacked_bytes; /* of all bodies and messages at a time that came compressed */
    uint64_t total_body_bytes; /* of all bodies and messages at a time, as they come */
    uint64_t json_depth, json_values;
    uint64_t inputs;                  /* of one request, outputs that it asks for, and parameters */
    uint64_t output_bytes;            /* that a request's answers may have at a time */
    uint64_t regions;                 /* of shared memory that are registered, of all clients */
    uint64_t kept_bytes, kept_calls;  /* of memory that a call keeps for its next use; how many calls a loop keeps */
    uint64_t connections;             /* in all */
    uint64_t connections_per_address; /* of one IPv4 address or /64 of IPv6; 0: as many as in all */
    uint64_t streams;                 /* of one HTTP/2 connection at a time */
    uint64_t resets_per_s;            /* of streams, by a client, on one connection */
    uint64_t unsent_bytes; /* of answers that a client may leave unread without reading on */
    uint64_t total_unsent_bytes; /* of answers that all clients together leave unread */
    uint64_t handshake_ms; /* of TLS */
    uint64_t header_ms;    /* from a request's first byte, or the connection's beginning, to the end of its headers */
    uint64_t body_ms;      /* for each LIMITS_PROGRESS bytes of a body */
    uint64_t idle_ms;      /* of a connection without a request; 0: for ever */
    uint64_t unsent_ms;    /* for each LIMITS_PROGRESS bytes that a client should read */
} Limits;

/* Who sends or reads less than that within a time limit is too slow. */
enum { LIMITS_PROGRESS = 4096 };

/* How far a client has come with what it has begun. */
typedef struct {
    uint64_t bytes, looked_bytes, looked_ms; /* `bytes`: counted by whoever has it; the others are of a look */
    bool awaited;
} Progress;

/* Look whether a client has been too slow: it has to go on (`awaited`), and has done less than `least` bytes since a look that is as long ago as the
 * limit. */
bool progress_stalls(Progress *progress, bool awaited, uint64_t least, uint64_t limit_ms, uint64_t now_ms);
/* Look whether a client leaves too much unread, as one more answer comes for it. `unread`: bytes that wait for it besides that answer, which may be large,
 * and has just come. `taking`: what it has read, for this alone. */
bool limits_are_unread(const Limits *limits, Progress *taking, uint64_t unread, uint64_t now_ms);

/* What a client was refused for. */
typedef enum {
    REFUSED_CONNECTIONS,
    REFUSED_CONNECTIONS_PER_ADDRESS,
    REFUSED_DESCRIPTORS, /* there was no descriptor or memory for its connection */
    REFUSED_HANDSHAKE,   /* TLS failed */
    REFUSED_HANDSHAKE_TIME,
    REFUSED_HEADER_TIME,
    REFUSED_BODY_TIME,
    REFUSED_IDLE_TIME,
    REFUSED_UNSENT_TIME,
    REFUSED_UNSENT_BYTES,
    REFUSED_HEADER_BYTES,
    REFUSED_HEADERS,
    REFUSED_BODY_BYTES,
    REFUSED_UNPACKED_BYTES,
    REFUSED_TOTAL_BODY_BYTES,
    REFUSED_MALFORMED, /* no HTTP, HTTP/2, JSON, protobuf, UTF-8, deflate ... */
    REFUSED_JSON_DEPTH,
    REFUSED_JSON_VALUES,
    REFUSED_INPUTS,
    REFUSED_OUTPUT_BYTES,
    REFUSED_REGIONS,
    REFUSED_STREAMS,
    REFUSED_RESETS,
    REFUSED_OTHER_SITE, /* by a browser, for a page of another site */
    REFUSED_RESTRICTED, /* without the token of a restricted endpoint */
    REFUSALS,
} Refusal;

/* The limits that are there if no setting says otherwise. */
Limits limits_default(void);
/* The limit of such a name in the settings ("header_bytes", "idle_s" in seconds, ...). False: there is no such limit, or its value is out
 * of range. */
bool limits_set(Limits *limits, Slice name, double value, Problem *problem);

/* Have a body count that has been unpacked, until it is let go of: what a client sends may become a thousand times as much, and stays for as long as its
 * request waits. False, with the problem: there are too many. Any thread. */
bool unpacked_take(const Limits *limits, uint64_t size, Problem *problem);
void unpacked_give(uint64_t size);

/* What a body counts as until it is released, see below. */
typedef struct {
    uint64_t unpacked, received;
} BodyCount;

void body_release(BodyCount *count);

/* Count bytes of a body that has been received, in part or whole, until they are released. False, with the problem: all bodies together would take
 * too much. Any thread. */
bool bodies_take(const Limits *limits, uint64_t size, Problem *problem);
void bodies_release(uint64_t size);

/* Count bytes of an answer that wait for their client, until they are released. `before`: what waits for the same client already. False: they would be
 * too many, and have not been counted. Half of `total_unsent_bytes` is kept for clients for which nothing else waits, so those that do not read cannot
 * shut out those that do. Any thread. */
bool unsent_take(const Limits *limits, uint64_t before, uint64_t size);
/* Whether so much waits for one client that it should be sent nothing more, if it can be made to wait. */
bool unsent_is_much(const Limits *limits, uint64_t before);
/* Count them in any case. */
void unsent_add(uint64_t size);
void unsent_release(uint64_t size);
/* The problem of an answer that unsent_take has refused. */
bool unsent_problem(const Limits *limits, Problem *problem);
/* How long a client may read nothing of what waits for it: less where all clients together leave much unread. */
uint64_t unsent_patience_ms(const Limits *limits);
/* How often to check whether it has read something. */
uint64_t unsent_check_ms(const Limits *limits);

/* Count one; any thread. */
void refusals_count(Refusal refusal);
uint64_t refusals_read(Refusal refusal);
/* Its label in metrics: "header_bytes". */
const char *refusal_name(Refusal refusal);

#endif
