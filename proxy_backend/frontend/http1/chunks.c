#include "http1/chunks.h"

enum { AT_SIZE, AT_DATA, AT_DATA_END, AT_TRAILER };

static HttpResult set_malformed(Problem *problem, const char *what)
{
    problem_set(problem, PROBLEM_INVALID, "the chunked body is malformed: %s", what);
    return HTTP_INVALID;
}

/* Collect a line up to its CR LF. HTTP_DONE means that chunks->text has the line without its end. */
static HttpResult take_line(HttpChunks *chunks, Slice *input, Problem *problem)
{
    while (input->size) {
        char byte = input->start[0];
        *input = slice_after(*input, 1);
        bool after_return = chunks->line && chunks->text[chunks->line - 1] == '\r';
        if (after_return != (byte == '\n'))
            return set_malformed(problem, "a line does not end with a carriage return and a line feed");
        if (byte == '\n') {
            chunks->line--;
            return HTTP_DONE;
        }
        if (chunks->line == sizeof chunks->text)
            return set_malformed(problem, "a line has more than 1024 bytes");
        chunks->text[chunks->line++] = byte;
    }
    return HTTP_MORE;
}

/* Read the hexadecimal digits of a size. Returns their number, or 0 if there are none or too many. */
static size_t read_size(Slice line, uint64_t *size)
{
    size_t count = 0;
    *size = 0;
    for (; count < line.size; count++) {
        char byte = line.start[count];
        unsigned digit = byte >= '0' && byte <= '9' ? (unsigned)(byte - '0')
            : byte >= 'a' && byte <= 'f'            ? (unsigned)(byte - 'a') + 10
            : byte >= 'A' && byte <= 'F'            ? (unsigned)(byte - 'A') + 10
                                                    : 16;
        if (digit > 15)
            break;
        *size = *size << 4 | digit;
    }
    return count <= 15 ? count : 0;
}

/* Parse the line before a chunk: "1f", or "1f;extension". */
static HttpResult begin_chunk(HttpChunks *chunks, const ChunkLimits *limits, Problem *problem)
{
    Slice line = {chunks->text, chunks->line};
    size_t digits = read_size(line, &chunks->left);
    if (digits == 0)
        return set_malformed(problem, "a chunk's size is not a hexadecimal number, or is too large");
    Slice extension = slice_after(line, digits);
    if (extension.size && extension.start[0] != ';')
        return set_malformed(problem, "a chunk's size is followed by other characters");
    for (size_t i = 0; i < extension.size; i++)
        if ((unsigned char)extension.start[i] < ' ' && extension.start[i] != '\t')
            return set_malformed(problem, "a chunk's extension has control characters");
    chunks->overhead += extension.size;
    if (chunks->overhead > limits->overhead_bytes)
        return set_malformed(problem, "its extensions and trailers exceed the limit");
    if (chunks->left > limits->body_bytes - chunks->body) {
        problem_set(problem, PROBLEM_TOO_LARGE, "the request's body has more than %llu bytes",
            (unsigned long long)limits->body_bytes);
        return HTTP_INVALID;
    }
    chunks->state = chunks->left ? AT_DATA : AT_TRAILER;
    return HTTP_MORE;
}

/* Check and ignore a trailer. HTTP_DONE means that the line was empty, which is the end. */
static HttpResult pass_trailer(HttpChunks *chunks, const ChunkLimits *limits, Problem *problem)
{
    if (chunks->line == 0)
        return HTTP_DONE;
    chunks->overhead += chunks->line;
    if (chunks->overhead > limits->overhead_bytes)
        return set_malformed(problem, "its extensions and trailers exceed the limit");
    HttpHeader ignored;
    return http_read_header((Slice){chunks->text, chunks->line}, &ignored, problem) ? HTTP_MORE : HTTP_INVALID;
}

HttpResult http_chunks(HttpChunks *chunks, Slice *input, Slice *data, const ChunkLimits *limits, Problem *problem)
{
    *data = (Slice){input->start, 0};
    while (input->size) {
        if (chunks->state == AT_DATA) {
            data->start = input->start;
            data->size = chunks->left < input->size ? (size_t)chunks->left : input->size;
            *input = slice_after(*input, data->size);
            chunks->left -= data->size;
            chunks->body += data->size;
            if (chunks->left == 0)
                chunks->state = AT_DATA_END;
            return HTTP_MORE;
        }
        HttpResult result = take_line(chunks, input, problem);
        if (result != HTTP_DONE)
            return result;
        if (chunks->state == AT_SIZE) {
            result = begin_chunk(chunks, limits, problem);
        } else if (chunks->state == AT_DATA_END) {
            if (chunks->line)
                return set_malformed(problem, "a chunk is longer than its size says");
            chunks->state = AT_SIZE;
            result = HTTP_MORE;
        } else {
            result = pass_trailer(chunks, limits, problem);
        }
        chunks->line = 0;
        if (result != HTTP_MORE)
            return result;
    }
    return HTTP_MORE;
}
