/* The limits for clients, and how often one was exceeded. */
#ifndef PYTRITON_FRONTEND_NET_LIMITS_H
#define PYTRITON_FRONTEND_NET_LIMITS_H

#include "base/problem.h"

/* From the settings: times in milliseconds. 0: no limit, if the field says so. */
typedef struct {
    uint64_t header_bytes; /* of a request's line and headers, of a gRPC call's metadata */
    uint64_t headers;      /* their number */
    uint64_t body_bytes;   /* of a request's body, also after decompression; of a gRPC message */
    uint64_t unpacked_bytes; /* of all bodies and messages at a time that came compressed */
    uint64_t total_body_bytes; /* of all bodies and messages at a time, as received */
    uint64_t json_depth, json_values;
    uint64_t inputs;                  /* of one request, its requested outputs, and its parameters */
    uint64_t output_bytes;            /* of a request's answers at a time */
    uint64_t regions;                 /* registered shared memory regions of all clients */
    uint64_t kept_bytes, kept_calls;  /* memory that a call keeps for reuse; calls that a loop keeps */
    uint64_t connections;             /* total */
    uint64_t connections_per_address; /* per IPv4 address or IPv6 /64; 0: same as the total */
    uint64_t streams;                 /* per HTTP/2 connection at a time */
    uint64_t resets_per_s;            /* stream resets by a client on one connection */
    uint64_t unsent_bytes; /* of answers that a client may leave unread without making progress */
    uint64_t total_unsent_bytes; /* of unread answers of all clients */
    uint64_t handshake_ms; /* of TLS */
    uint64_t header_ms; /* from a request's first byte, or the start of the connection, to the end of its headers */
    uint64_t body_ms; /* for each LIMITS_PROGRESS bytes of a body */
    uint64_t idle_ms; /* of a connection without a request; 0: unlimited */
    uint64_t unsent_ms; /* for each LIMITS_PROGRESS bytes that a client should read */
} Limits;

/* A client that sends or reads less than this within a time limit is too slow. */
enum { LIMITS_PROGRESS = 4096 };

/* A client's progress with what it has begun. */
typedef struct {
    uint64_t bytes, checked_bytes, checked_ms; /* `bytes`: counted by the owner; the others are from the last check */
    bool is_expected;
} Progress;

/* Returns whether a client has been too slow: it has to make progress (`is_expected`), and has done less than `min_bytes`
 * bytes since a check at least the limit ago.
 */
bool progress_stalls(Progress *progress, bool is_expected, uint64_t min_bytes, uint64_t limit_ms, uint64_t now_ms);
/* Returns whether a client leaves too much unread when another answer comes for it. `unread`: bytes that wait besides
 * that answer, which may be large. `read_progress`: its read progress, used only here.
 */
bool limits_are_unread(const Limits *limits, Progress *read_progress, uint64_t unread, uint64_t now_ms);

/* Why a client was refused. */
typedef enum {
    REFUSED_CONNECTIONS,
    REFUSED_CONNECTIONS_PER_ADDRESS,
    REFUSED_DESCRIPTORS, /* no descriptor or memory for its connection */
    REFUSED_HANDSHAKE, /* TLS failed */
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
    REFUSED_MALFORMED, /* invalid HTTP, HTTP/2, JSON, protobuf, UTF-8, deflate ... */
    REFUSED_JSON_DEPTH,
    REFUSED_JSON_VALUES,
    REFUSED_INPUTS,
    REFUSED_OUTPUT_BYTES,
    REFUSED_REGIONS,
    REFUSED_STREAMS,
    REFUSED_RESETS,
    REFUSED_OTHER_SITE, /* from a browser, on behalf of a page of another site */
    REFUSED_RESTRICTED, /* without the token of a restricted endpoint */
    REFUSALS,
} Refusal;

/* Returns the default limits. */
Limits limits_default(void);
/* Set the limit of this name in the settings ("header_bytes", "idle_s" in seconds, ...). Returns false if there is no
 * such limit, or the value is out of range.
 */
bool limits_set(Limits *limits, Slice name, double value, Problem *problem);

/* Count a decompressed body until its release: data from a client may grow a thousandfold, and stays for as long as
 * its request waits. Returns false with a problem if there are too many. Any thread.
 */
bool unpacked_reserve(const Limits *limits, uint64_t size, Problem *problem);
void unpacked_release(uint64_t size);

/* The size that a body counts as until its release, see below. */
typedef struct {
    uint64_t unpacked, received;
} BodyCount;

void body_release(BodyCount *count);

/* Count received bytes of a body until their release. Returns false with a problem if all bodies together would take
 * too much. Any thread.
 */
bool bodies_reserve(const Limits *limits, uint64_t size, Problem *problem);
void bodies_release(uint64_t size);

/* Count bytes of an answer that wait for their client, until their release. `before`: bytes already waiting for the
 * same client. Returns false, without counting them, if they would be too many. Half of `total_unsent_bytes` is
 * reserved for clients without waiting bytes, so clients that do not read cannot lock out those that do. Any thread.
 */
bool unsent_reserve(const Limits *limits, uint64_t before, uint64_t size);
/* Returns whether so much waits for one client that it should be sent nothing more if it can wait. */
bool unsent_is_excessive(const Limits *limits, uint64_t before);
/* Count them unconditionally. */
void unsent_add(uint64_t size);
void unsent_release(uint64_t size);
/* Set the problem of an answer that unsent_reserve refused. */
bool unsent_problem(const Limits *limits, Problem *problem);
/* Returns how long a client may read nothing: less if all clients together leave much unread. */
uint64_t unsent_timeout_ms(const Limits *limits);
/* Returns how often to check whether it has read something. */
uint64_t unsent_check_interval_ms(const Limits *limits);

/* Count one; any thread. */
void refusals_count(Refusal refusal);
uint64_t refusals_read(Refusal refusal);
/* Returns its label in metrics: "header_bytes". */
const char *refusal_name(Refusal refusal);

#endif
