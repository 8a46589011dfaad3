/* Limits for clients, and counts of refusals. */
#ifndef PYTRITON_FRONTEND_NET_LIMITS_H
#define PYTRITON_FRONTEND_NET_LIMITS_H

#include "base/problem.h"

/* The limits, as set by the daemon. Times are in milliseconds here. 0 means no limit only where a field says so. */
typedef struct {
    uint64_t header_bytes; /* size of a request's first line and headers, or of a gRPC call's metadata */
    uint64_t headers;      /* number of headers */
    uint64_t body_bytes;   /* size of a request's body, also after decompression, or of a gRPC message */
    uint64_t unpacked_bytes; /* total size of all bodies and messages that were compressed, after decompression */
    uint64_t total_body_bytes; /* total size of all bodies and messages, as received */
    uint64_t json_depth, json_values;
    /* number of inputs of a request, of its requested outputs, and of its parameters */
    uint64_t inputs;
    uint64_t output_bytes;            /* total size of a request's answers at any time */
    uint64_t regions;                 /* number of registered shared memory regions of all clients */
    /* memory that a call keeps for reuse, and number of unused calls that a loop keeps */
    uint64_t kept_bytes, kept_calls;
    uint64_t connections;             /* total number of connections */
    uint64_t connections_per_address; /* connections per IPv4 address or IPv6 /64; 0 means no separate limit */
    uint64_t streams;                 /* streams per HTTP/2 connection at any time */
    uint64_t resets_per_s;            /* streams that a client may reset on one connection */
    uint64_t unsent_bytes; /* bytes of answers that a client may leave unread without making progress */
    uint64_t total_unsent_bytes; /* bytes of unread answers of all clients */
    uint64_t handshake_ms; /* for the TLS handshake */
    uint64_t header_ms; /* from the beginning of a request or connection to the end of the headers */
    uint64_t body_ms; /* for each LIMITS_PROGRESS bytes of a body */
    uint64_t idle_ms; /* for a connection without a request; 0 means no limit */
    uint64_t unsent_ms; /* for each LIMITS_PROGRESS bytes that a client has to read */
} Limits;

/* A client is too slow if it sends or reads less than this within a time limit. */
enum { LIMITS_PROGRESS = 4096 };

/* A client's progress in sending or reading. */
typedef struct {
    /* `bytes` is counted by the owner; the others are from the previous check */
    uint64_t bytes, checked_bytes, checked_ms;
    bool is_expected;
} Progress;

/* Returns whether a client is too slow: it has to make progress (`is_expected`), but has done less than `min_bytes`
 * since a check that was at least `limit_ms` ago.
 */
bool progress_stalls(Progress *progress, bool is_expected, uint64_t min_bytes, uint64_t limit_ms, uint64_t now_ms);
/* Returns whether a client leaves too much unread when another answer is about to wait for it. `unread` is the size of
 * what waits already. `read_progress` is the client's progress in reading, which only this function uses.
 */
bool limits_are_unread(const Limits *limits, Progress *read_progress, uint64_t unread, uint64_t now_ms);

/* Reasons for which clients are refused. */
typedef enum {
    REFUSED_CONNECTIONS,
    REFUSED_CONNECTIONS_PER_ADDRESS,
    REFUSED_DESCRIPTORS, /* no descriptor or memory is available for the connection */
    REFUSED_HANDSHAKE, /* the TLS handshake failed */
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
    REFUSED_MALFORMED, /* invalid HTTP, HTTP/2, JSON, protobuf, UTF-8, compression and so on */
    REFUSED_JSON_DEPTH,
    REFUSED_JSON_VALUES,
    REFUSED_INPUTS,
    REFUSED_OUTPUT_BYTES,
    REFUSED_REGIONS,
    REFUSED_STREAMS,
    REFUSED_RESETS,
    REFUSED_OTHER_SITE, /* sent by a browser on behalf of another site's page */
    REFUSED_RESTRICTED, /* without the token for a restricted endpoint */
    REFUSALS,
} Refusal;

/* Returns the default limits. */
Limits limits_default(void);
/* Set the limit with this name in the settings ("header_bytes", "idle_s" in seconds, and so on). Returns false with a
 * problem if there is no such limit, or the value is out of range.
 */
bool limits_set(Limits *limits, Slice name, double value, Problem *problem);

/* Count the size of a decompressed body until body_release. Decompression may multiply data by a thousand, and the
 * result stays for as long as its request waits. Returns false with a problem if there would be too much. Any thread.
 */
bool unpacked_reserve(const Limits *limits, uint64_t size, Problem *problem);

/* The part of a body's size that is counted, until body_release. */
typedef struct {
    uint64_t unpacked, received;
} BodyCount;

void body_release(BodyCount *count);

/* Count received bytes of a body until they are released. Returns false with a problem if all bodies together would be
 * too large. Any thread.
 */
bool bodies_reserve(const Limits *limits, uint64_t size, Problem *problem);
void bodies_release(uint64_t size);

/* Count bytes of an answer that wait for their client, until unsent_release. `before` is the number of bytes that wait
 * for this client already. Returns false, without counting them, if they would be too many. Half of
 * `total_unsent_bytes` is reserved for clients for which nothing waits, so that clients that do not read cannot lock
 * out those that do. Any thread.
 */
bool unsent_reserve(const Limits *limits, uint64_t before, uint64_t size);
/* Returns whether so much waits for a client that nothing more should be sent to it if that can wait. */
bool unsent_is_excessive(const Limits *limits, uint64_t before);
/* Count bytes unconditionally. */
void unsent_add(uint64_t size);
void unsent_release(uint64_t size);
/* Set the problem for an answer that unsent_reserve refused. Returns false. */
bool unsent_problem(const Limits *limits, Problem *problem);
/* Returns how long a client may read nothing. The time is shorter while all clients together leave much unread. */
uint64_t unsent_timeout_ms(const Limits *limits);
/* Returns the interval at which to check whether a client has read something. */
uint64_t unsent_check_interval_ms(const Limits *limits);

/* Count a refusal. Any thread. */
void refusals_count(Refusal refusal);
uint64_t refusals_read(Refusal refusal);
/* Returns the label of a refusal in metrics, such as "header_bytes". */
const char *refusal_name(Refusal refusal);

#endif
