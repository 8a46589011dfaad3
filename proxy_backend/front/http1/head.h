/* The head of a request of HTTP/1.1 (RFC 9112): its first line and headers, strictly. What two readers could take for two things is
 * refused: two lengths, a length and chunks, bare line feeds, odd spaces, folded lines.
 */
#ifndef PYTRITON_FRONT_HTTP1_HEAD_H
#define PYTRITON_FRONT_HTTP1_HEAD_H

#include "base/problem.h"

typedef struct {
    size_t target_bytes, header_bytes; /* of the target; of the whole head */
    uint32_t headers; /* how many, at most HTTP_MOST_HEADERS */
} HttpLimits;

enum { HTTP_MOST_HEADERS = 128 };

typedef enum { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER } HttpMethod;

typedef struct {
    Slice name, value; /* the value without spaces around it */
} HttpHeader;

/* Its slices lie in the bytes that were read. */
typedef struct {
    HttpMethod method;
    Slice method_name, path, query; /* as they were sent; `query` without "?", `start` NULL: none */
    int minor; /* of HTTP/1.x */
    bool keep_alive, chunked, expects_continue, has_length;
    uint64_t length; /* of the body; 0 where none is said and it does not come in chunks */
    uint32_t count;
    HttpHeader headers[HTTP_MOST_HEADERS];
} HttpHead;

/* How far the end of a head has been looked for. All zero: at the beginning. */
typedef struct {
    size_t looked;
} HttpScan;

typedef enum { HTTP_MORE, HTTP_DONE, HTTP_WRONG } HttpResult;

/* Look for the end of the head in all bytes that there are of it, from its first one. HTTP_DONE: it has `*size` bytes, the empty line
 * included. HTTP_WRONG: it is, or becomes, too large. */
HttpResult http_find_head(HttpScan *scan, Slice bytes, const HttpLimits *limits, size_t *size, Problem *problem);
/* Read a whole head. */
bool http_read_head(HttpHead *head, Slice bytes, const HttpLimits *limits, Problem *problem);
/* The value of a header; `start` NULL: it is not there. */
Slice http_header(const HttpHead *head, const char *name);
/* Whether a header is there more than once. */
bool http_header_repeats(const HttpHead *head, const char *name);
/* Whether a comma-separated list of tokens has one, in either case. */
bool http_list_has(Slice list, const char *token);

/* Whether bytes are a line of a header; the line's end is not part of it. Also for trailers. */
bool http_read_header(Slice line, HttpHeader *header, Problem *problem);

#endif
