/* Strict parser for heads of HTTP/1.1 requests (RFC 9112): the first line and the headers. Whatever two parsers could
 * understand differently is refused: two lengths, a length and chunks, bare line feeds, odd spaces, folded lines.
 */
#ifndef PYTRITON_FRONTEND_HTTP1_HEAD_H
#define PYTRITON_FRONTEND_HTTP1_HEAD_H

#include "base/problem.h"

typedef struct {
    size_t target_bytes, header_bytes; /* maximum size of the target, and of the whole head */
    uint32_t headers; /* maximum number, at most HTTP_MAX_HEADERS */
} HttpLimits;

enum { HTTP_MAX_HEADERS = 128 };

typedef enum { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER } HttpMethod;

typedef struct {
    Slice name, value; /* the value has no surrounding spaces */
} HttpHeader;

/* A parsed head. Its slices point into the input. */
typedef struct {
    HttpMethod method;
    Slice method_name, path; /* as sent, without a query */
    int minor; /* the x in HTTP/1.x */
    bool keep_alive, chunked, expects_continue, has_length;
    uint64_t length; /* of the body; 0 if it is not given, or the body is chunked */
    uint32_t count;
    HttpHeader headers[HTTP_MAX_HEADERS];
} HttpHead;

/* How far the input has been searched for the end of the head. All zeros at first. */
typedef struct {
    size_t scanned;
} HttpScan;

typedef enum { HTTP_MORE, HTTP_DONE, HTTP_INVALID } HttpResult;

/* Search all bytes received so far for the end of the head. HTTP_DONE: `*size` is the size of the head, including the
 * empty line. HTTP_INVALID: the head is too large, or will be.
 */
HttpResult http_find_head(HttpScan *scan, Slice bytes, const HttpLimits *limits, size_t *size, Problem *problem);
/* Parse a complete head. */
bool http_read_head(HttpHead *head, Slice bytes, const HttpLimits *limits, Problem *problem);
/* Returns the value of a header, or an absent slice. */
Slice http_header(const HttpHead *head, const char *name);
/* Returns whether a header occurs more than once. */
bool http_header_repeats(const HttpHead *head, const char *name);

/* Parse a line with a header or trailer, without its end. Returns false with a problem if it is invalid. */
bool http_read_header(Slice line, HttpHeader *header, Problem *problem);

#endif
