#include "http1/encoding.h"

static bool is_gzip(Slice name)
{
    return slice_is_nocase(name, "gzip") || slice_is_nocase(name, "x-gzip");
}

bool encoding_of_request(const HttpHead *head, Compression *compression, Problem *problem)
{
    Slice name = http_header(head, "content-encoding");
    *compression = COMPRESSION_NONE;
    if (http_header_repeats(head, "content-encoding"))
        return problem_set(problem, PROBLEM_MEDIA, "Content-Encoding occurs more than once");
    if (is_gzip(name))
        *compression = COMPRESSION_GZIP;
    else if (slice_is_nocase(name, "deflate"))
        *compression = COMPRESSION_DEFLATE;
    else if (name.size && !slice_is_nocase(name, "identity"))
        return problem_set(problem, PROBLEM_MEDIA,
            "Unsupported Content-Encoding '%.*s': use 'gzip', 'deflate' or 'identity'",
            name.size < 100 ? (int)name.size : 100, name.start);
    return true;
}

/* Returns the weight in parameters such as "q=0.5" in thousandths (RFC 9110, 12.4.2). An invalid one counts as 0. */
static unsigned weight_of(Slice parameters)
{
    Slice rest = parameters, part;
    while (slice_split(&rest, ';', &part)) {
        part = slice_trimmed(part);
        if (!slice_starts_nocase(part, "q="))
            continue;
        part = slice_after(part, 2);
        if (part.size == 0 || part.start[0] < '0' || part.start[0] > '1' || (part.size > 1 && part.start[1] != '.'))
            return 0;
        unsigned weight = (unsigned)(part.start[0] - '0') * 1000, unit = 100;
        for (size_t i = 2; i < part.size && unit; i++, unit /= 10) {
            if (part.start[i] < '0' || part.start[i] > '9')
                return 0;
            weight += (unsigned)(part.start[i] - '0') * unit;
        }
        return weight < 1000 ? weight : 1000;
    }
    return 1000;
}

Compression encoding_of_response(const HttpHead *head)
{
    Slice rest = http_header(head, "accept-encoding"), part, name;
    unsigned gzip = 0, deflate = 0, identity = 0;
    while (slice_split(&rest, ',', &part)) {
        Slice parameters = part;
        slice_split(&parameters, ';', &name);
        name = slice_trimmed(name);
        unsigned weight = weight_of(parameters);
        if (is_gzip(name))
            gzip = weight;
        else if (slice_is_nocase(name, "deflate"))
            deflate = weight;
        else if (slice_is_nocase(name, "identity"))
            identity = weight;
    }
    if (!compression_is_loaded() || (gzip == 0 && deflate == 0) || (identity > gzip && identity > deflate))
        return COMPRESSION_NONE;
    return gzip >= deflate ? COMPRESSION_GZIP : COMPRESSION_DEFLATE;
}

const char *encoding_name(Compression compression)
{
    return compression == COMPRESSION_GZIP ? "gzip" : compression == COMPRESSION_DEFLATE ? "deflate" : "identity";
}
