#include "http1/head.h"

/* ── where it ends ────────────────────────────────────────────────────────────────────────────────── */

HttpResult http_find_head(HttpScan *scan, Slice bytes, const HttpLimits *limits, size_t *size, Problem *problem)
{
    size_t look = bytes.size < limits->header_bytes ? bytes.size : limits->header_bytes;
    while (scan->scanned < look) {
        const char *from = bytes.start + scan->scanned;
        const char *feed = memchr(from, '\n', look - scan->scanned);
        if (feed == NULL)
            break;
        size_t at = (size_t)(feed - bytes.start);
        scan->scanned = at + 1;
        /* An empty line ends the head, except before the first line, where some clients send one (RFC 9112, 2.2). */
        if (at >= 3 && memcmp(feed - 3, "\r\n\r", 3) == 0) {
            *size = at + 1;
            return HTTP_DONE;
        }
        if (at == 0 || feed[-1] != '\r') {
            problem_set(problem, PROBLEM_INVALID, "a line of the request's head ends without a carriage return");
            return HTTP_INVALID;
        }
    }
    if (bytes.size < limits->header_bytes)
        return HTTP_MORE;
    problem_set(problem, PROBLEM_HEADERS, "the request's head has more than %zu bytes", limits->header_bytes);
    return HTTP_INVALID;
}

/* ── what its bytes may be ────────────────────────────────────────────────────────────────────────── */

/* Returns whether a byte may occur in a token (RFC 9110, 5.6.2): letters, digits and some signs. */
static bool is_token_byte(unsigned char byte)
{
    static const bool allowed[256] = {['!'] = true,
        ['#' ... '\''] = true,
        ['*'] = true,
        ['+'] = true,
        ['-'] = true,
        ['.'] = true,
        ['0' ... '9'] = true,
        ['A' ... 'Z'] = true,
        ['^'] = true,
        ['_'] = true,
        ['`'] = true,
        ['a' ... 'z'] = true,
        ['|'] = true,
        ['~'] = true};
    return allowed[byte];
}

static bool is_token(Slice text)
{
    for (size_t i = 0; i < text.size; i++)
        if (!is_token_byte((unsigned char)text.start[i]))
            return false;
    return text.size > 0;
}

static bool is_value(Slice text)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.start[i];
        if ((byte < ' ' && byte != '\t') || byte == 0x7f)
            return false;
    }
    return true;
}

static bool is_target(Slice text)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.start[i];
        if (byte <= ' ' || byte >= 0x7f || byte == '#')
            return false;
    }
    return text.size > 0;
}

/* ── the first line ───────────────────────────────────────────────────────────────────────────────── */

static HttpMethod method_of(Slice name)
{
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_is(name, names[i]))
            return (HttpMethod)i;
    return HTTP_OTHER;
}

/* Parse "/path?query", or the same after "http://host". */
static bool read_target(HttpHead *head, Slice target, Problem *problem)
{
    if (!is_target(target))
        return problem_set(problem, PROBLEM_INVALID, "the request's target has invalid characters");
    Slice path = target;
    for (int i = 0; i < 2; i++) {
        const char *scheme = i ? "https://" : "http://";
        if (!slice_starts_nocase(target, scheme))
            continue;
        Slice host = slice_after(target, strlen(scheme));
        const char *slash = memchr(host.start, '/', host.size);
        path = slash ? slice_after(host, (size_t)(slash - host.start)) : SLICE("/");
    }
    if (path.start[0] != '/')
        return problem_set(problem, PROBLEM_INVALID, "the request's target is not a path: it does not begin with '/'");
    const char *mark = memchr(path.start, '?', path.size);
    head->path = mark ? (Slice){path.start, (size_t)(mark - path.start)} : path;
    return true;
}

static bool read_version(HttpHead *head, Slice version, Problem *problem)
{
    bool is_version = version.size == 8 && slice_starts(version, "HTTP/") && version.start[6] == '.' &&
        version.start[5] >= '0' && version.start[5] <= '9' && version.start[7] >= '0' && version.start[7] <= '9';
    if (!is_version)
        return problem_set(problem, PROBLEM_INVALID, "the request's first line is not 'METHOD /target HTTP/1.1'");
    if (version.start[5] != '1')
        return problem_set(problem, PROBLEM_VERSION, "this port speaks HTTP/1.1, not HTTP/%c", version.start[5]);
    head->minor = version.start[7] == '0' ? 0 : 1;
    return true;
}

static bool read_first_line(HttpHead *head, Slice line, const HttpLimits *limits, Problem *problem)
{
    Slice rest = line, target;
    if (!slice_split(&rest, ' ', &head->method_name) || !slice_split(&rest, ' ', &target) || rest.start == NULL ||
        !is_token(head->method_name))
        return problem_set(problem, PROBLEM_INVALID, "the request's first line is not 'METHOD /target HTTP/1.1'");
    if (!read_version(head, rest, problem))
        return false;
    if (target.size > limits->target_bytes)
        return problem_set(
            problem, PROBLEM_TARGET, "the request's target has more than %zu bytes", limits->target_bytes);
    head->method = method_of(head->method_name);
    return read_target(head, target, problem);
}

/* ── headers ──────────────────────────────────────────────────────────────────────────────────────── */

bool http_read_header(Slice line, HttpHeader *header, Problem *problem)
{
    Slice rest = line;
    slice_split(&rest, ':', &header->name);
    if (rest.start == NULL)
        return problem_set(problem, PROBLEM_INVALID, "a header has no colon");
    if (!is_token(header->name))
        return problem_set(problem, PROBLEM_INVALID, "a header's name has invalid characters");
    header->value = slice_trimmed(rest);
    if (!is_value(header->value))
        return problem_set(problem, PROBLEM_INVALID, "the header '%.*s' has control characters",
            header->name.size < 100 ? (int)header->name.size : 100, header->name.start);
    return true;
}

Slice http_header(const HttpHead *head, const char *name)
{
    for (uint32_t i = 0; i < head->count; i++)
        if (slice_is_nocase(head->headers[i].name, name))
            return head->headers[i].value;
    return (Slice){NULL, 0};
}

bool http_header_repeats(const HttpHead *head, const char *name)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < head->count; i++)
        found += slice_is_nocase(head->headers[i].name, name);
    return found > 1;
}

/* Returns whether a comma-separated list of tokens contains one, ignoring case. */
static bool http_list_has(Slice list, const char *token)
{
    Slice rest = list, part;
    while (slice_split(&rest, ',', &part))
        if (slice_is_nocase(slice_trimmed(part), token))
            return true;
    return false;
}

/* Find out the length of the body. Headers that can be understood in more than one way are refused. */
static bool read_framing(HttpHead *head, Problem *problem)
{
    Slice length = http_header(head, "content-length"), coding = http_header(head, "transfer-encoding");
    if (http_header_repeats(head, "content-length") || http_header_repeats(head, "transfer-encoding"))
        return problem_set(problem, PROBLEM_INVALID, "Content-Length or Transfer-Encoding occurs more than once");
    if (length.start && coding.start)
        return problem_set(problem, PROBLEM_INVALID, "Content-Length and Transfer-Encoding cannot be combined");
    head->has_length = length.start != NULL;
    if (head->has_length && !slice_unsigned(length, &head->length))
        return problem_set(problem, PROBLEM_INVALID, "Content-Length is not a number of bytes");
    if (coding.start == NULL)
        return true;
    if (head->minor == 0)
        return problem_set(problem, PROBLEM_INVALID, "Transfer-Encoding is not part of HTTP/1.0");
    if (!slice_is_nocase(coding, "chunked"))
        return problem_set(problem, PROBLEM_UNSUPPORTED, "the only supported Transfer-Encoding is 'chunked'");
    head->chunked = true;
    return true;
}

/* Read the headers that concern the connection. */
static bool read_meaning(HttpHead *head, Problem *problem)
{
    Slice host = http_header(head, "host"), expect = http_header(head, "expect");
    if (http_header_repeats(head, "host") || (host.start == NULL && head->minor > 0))
        return problem_set(problem, PROBLEM_INVALID, "an HTTP/1.1 request must have exactly one Host header");
    if (expect.start && !slice_is_nocase(expect, "100-continue"))
        return problem_set(problem, PROBLEM_EXPECTATION, "the only supported expectation is '100-continue'");
    head->expects_continue = expect.start && head->minor > 0;
    head->keep_alive = head->minor > 0;
    for (uint32_t i = 0; i < head->count; i++) {
        if (!slice_is_nocase(head->headers[i].name, "connection"))
            continue;
        if (http_list_has(head->headers[i].value, "close")) {
            head->keep_alive = false;
            break;
        }
        head->keep_alive |= http_list_has(head->headers[i].value, "keep-alive");
    }
    return read_framing(head, problem);
}

/* Remove and return the first line without its end. http_find_head has checked that there is one. */
static Slice cut_line(Slice *rest)
{
    const char *feed = memchr(rest->start, '\n', rest->size);
    size_t size = feed ? (size_t)(feed - rest->start) : rest->size;
    Slice line = {rest->start, size && rest->start[size - 1] == '\r' ? size - 1 : size};
    *rest = slice_after(*rest, feed ? size + 1 : size);
    return line;
}

bool http_read_head(HttpHead *head, Slice bytes, const HttpLimits *limits, Problem *problem)
{
    memset(head, 0, offsetof(HttpHead, headers));
    Slice rest = slice_starts(bytes, "\r\n") ? slice_after(bytes, 2) : bytes;
    if (!read_first_line(head, cut_line(&rest), limits, problem))
        return false;
    uint32_t most = limits->headers < HTTP_MAX_HEADERS ? limits->headers : HTTP_MAX_HEADERS;
    while (rest.size) {
        Slice line = cut_line(&rest);
        if (line.size == 0)
            break;
        if (head->count == most)
            return problem_set(problem, PROBLEM_HEADERS, "the request has more than %u headers", most);
        if (line.start[0] == ' ' || line.start[0] == '\t')
            return problem_set(problem, PROBLEM_INVALID, "a header continues on the next line");
        if (!http_read_header(line, &head->headers[head->count], problem))
            return false;
        head->count++;
    }
    return read_meaning(head, problem);
}
