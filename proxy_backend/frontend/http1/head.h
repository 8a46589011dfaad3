/* The head of an HTTP/1.1 request (RFC 9112), parsed strictly: its first line and headers. Anything that two parsers
 * could read differently is refused: two lengths, a length and chunks, bare line feeds, odd spaces, folded lines.
 */
#ifndef PYTRITON_FRONTEND_HTTP1_HEAD_H
#define PYTRITON_FRONTEND_HTTP1_HEAD_H

#include "base/problem.h"

typedef struct {
    size_t target_bytes, header_bytes; /* of the target; of the whole head */
    uint32_t headers; /* their number, at most HTTP_MAX_HEADERS */
} HttpLimits;

enum { HTTP_MAX_HEADERS = 128 };

typedef enum { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER } HttpMethod;

typedef struct {
    Slice name, value; /* the value without surrounding spaces */
} HttpHeader;

/* Its slices point into the input. */
typedef struct {
    HttpMethod method;
    Slice method_name, path, query; /* as sent; `query` without "?", `start` NULL: none */
    int minor; /* of HTTP/1.x */
    bool keep_alive, chunked, expects_continue, has_length;
    uint64_t length; /* of the body; 0 if not given and not chunked */
    uint32_t count;
    HttpHeader headers[HTTP_MAX_HEADERS];
} HttpHead;

/* How far the end of a head has been searched for. All zero: at the beginning. */
typedef struct {
    size_t scanned;
} HttpScan;

typedef enum { HTTP_MORE, HTTP_DONE, HTTP_INVALID } HttpResult;

/* Search for the end of the head in all bytes received so far. HTTP_DONE: it has `*size` bytes, including the empty
 * line. HTTP_INVALID: it is, or becomes, too large.
 */
HttpResult http_find_head(HttpScan *scan, Slice bytes, const HttpLimits *limits, size_t *size, Problem *problem);
/* Parse a complete head. */
bool http_read_head(HttpHead *head, Slice bytes, const HttpLimits *limits, Problem *problem);
/* Returns the value of a header; `start` NULL: absent. */
Slice http_header(const HttpHead *head, const char *name);
/* Returns whether a header occurs more than once. */
bool http_header_repeats(const HttpHead *head, const char *name);

/* Parse a header line without its line end. Returns false if it is invalid. Also for trailers. */
bool http_read_header(Slice line, HttpHeader *header, Problem *problem);

#endif
