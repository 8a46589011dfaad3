/* zlib is loaded at startup, so it is not needed for the build. The used part of its API, stable since 1995, is
 * declared here.
 */
#include "base/compression.h"

#include <dlfcn.h>

typedef struct {
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *message;
    void *state;
    void *(*allocate)(void *, unsigned, unsigned);
    void (*release)(void *, void *);
    void *opaque;
    int data_type;
    unsigned long checksum, reserved;
} Stream;

enum {
    Z_OK = 0,
    Z_STREAM_END = 1,
    Z_MEM_ERROR = -4,
    Z_BUF_ERROR = -5,
    Z_NO_FLUSH = 0,
    Z_FINISH = 4,
    Z_DEFLATED = 8,
    WINDOW = 15,
    GZIP = 16, /* added to the window size: use a gzip header */
    MEMORY = 8, /* zlib's default */
    LEVEL = 1, /* fast, for low latency */
    PIECE = 1 << 16, /* bytes of output per step */
    MAX_INPUT = 1 << 30, /* limit of avail_in, which has 32 bits */
};

static struct {
    const char *(*version)(void);
    int (*inflate_init)(Stream *, int window, const char *version, int size);
    int (*inflate)(Stream *, int flush);
    int (*inflate_reset)(Stream *);
    int (*inflate_end)(Stream *);
    int (*deflate_init)(
        Stream *, int level, int method, int window, int memory, int strategy, const char *version, int size);
    int (*deflate)(Stream *, int flush);
    int (*deflate_end)(Stream *);
} zlib;

static bool loaded;

bool compression_load(const char *library, Problem *problem)
{
    static const struct {
        const char *name;
        void *place;
    } functions[] = {{"zlibVersion", &zlib.version}, {"inflateInit2_", &zlib.inflate_init}, {"inflate", &zlib.inflate},
        {"inflateReset", &zlib.inflate_reset}, {"inflateEnd", &zlib.inflate_end}, {"deflateInit2_", &zlib.deflate_init},
        {"deflate", &zlib.deflate}, {"deflateEnd", &zlib.deflate_end}};
    void *handle = dlopen(library ? library : "libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "cannot load zlib: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(handle, functions[i].name);
        if (found == NULL) {
            dlclose(handle);
            return problem_set(problem, PROBLEM_UNSUPPORTED, "zlib lacks %s", functions[i].name);
        }
        memcpy(functions[i].place, &found, sizeof found);
    }
    loaded = true;
    return true;
}

bool compression_is_loaded(void)
{
    return loaded;
}

static const char *name_of(Compression compression)
{
    return compression == COMPRESSION_GZIP ? "gzip" : "deflate";
}

static bool is_there(Problem *problem)
{
    return loaded ||
        problem_set(problem, PROBLEM_UNSUPPORTED, "this server has no zlib, so it does not accept compressed requests");
}

/* Give a stream the next part of its input. */
static void feed(Stream *stream, Slice *input)
{
    if (stream->avail_in || input->size == 0)
        return;
    stream->avail_in = input->size < MAX_INPUT ? (unsigned)input->size : MAX_INPUT;
    stream->next_in = (const unsigned char *)input->start;
    *input = slice_after(*input, stream->avail_in);
}

/* Make room for the next step of output, of at most `most` bytes. */
static bool make_room(Stream *stream, Buffer *output, uint64_t most)
{
    size_t room = most < PIECE ? (size_t)most : PIECE;
    if (!buffer_reserve(output, room ? room : 1))
        return false;
    stream->next_out = (unsigned char *)output->data + output->size;
    stream->avail_out = (unsigned)room;
    return true;
}

static bool expand(Stream *stream, const char *name, Slice input, Buffer *output, uint64_t limit, Problem *problem)
{
    for (uint64_t left = limit;;) {
        feed(stream, &input);
        /* Allow one byte more than the limit, to detect longer output. */
        if (!make_room(stream, output, left < UINT64_MAX ? left + 1 : left))
            return problem_no_memory(problem);
        unsigned room = stream->avail_out;
        int result = zlib.inflate(stream, Z_NO_FLUSH);
        size_t made = room - stream->avail_out;
        if (made > left)
            return problem_set(problem, PROBLEM_TOO_LARGE, "the %s body has more than %llu bytes after decompression",
                name, (unsigned long long)limit);
        output->size += made;
        left -= made;
        bool more = stream->avail_in || input.size;
        if (result == Z_STREAM_END) {
            if (!more)
                return true;
            if (strcmp(name, "gzip") != 0 || zlib.inflate_reset(stream) != Z_OK)
                return problem_set(problem, PROBLEM_INVALID, "the %s body is followed by more data", name);
        } else if (result == Z_MEM_ERROR) {
            return problem_no_memory(problem);
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            return problem_set(problem, PROBLEM_INVALID, "the body is not valid %s: %s", name,
                stream->message ? stream->message : "it is damaged");
        } else if (!more && made < room) {
            return problem_set(problem, PROBLEM_INVALID, "the %s body is truncated", name);
        }
    }
}

bool compression_expand(Compression compression, Slice input, Buffer *output, uint64_t limit, Problem *problem)
{
    if (!is_there(problem))
        return false;
    Stream stream = {0};
    int window = compression == COMPRESSION_GZIP ? WINDOW + GZIP : WINDOW;
    if (zlib.inflate_init(&stream, window, zlib.version(), (int)sizeof stream) != Z_OK)
        return problem_no_memory(problem);
    bool done = expand(&stream, name_of(compression), input, output, limit, problem);
    zlib.inflate_end(&stream);
    return done;
}

static bool shrink(Stream *stream, const Slice *pieces, size_t count, Buffer *output)
{
    size_t next = 0;
    Slice input = {"", 0};
    for (;;) {
        while (input.size == 0 && next < count)
            input = pieces[next++];
        feed(stream, &input);
        if (!make_room(stream, output, PIECE))
            return false;
        bool last = input.size == 0 && next == count;
        int result = zlib.deflate(stream, last ? Z_FINISH : Z_NO_FLUSH);
        output->size += PIECE - stream->avail_out;
        if (result == Z_STREAM_END)
            return true;
        if (result != Z_OK && result != Z_BUF_ERROR)
            return false;
    }
}

bool compression_shrink(Compression compression, const Slice *pieces, size_t count, Buffer *output, Problem *problem)
{
    if (!is_there(problem))
        return false;
    Stream stream = {0};
    int window = compression == COMPRESSION_GZIP ? WINDOW + GZIP : WINDOW;
    if (zlib.deflate_init(&stream, LEVEL, Z_DEFLATED, window, MEMORY, 0, zlib.version(), (int)sizeof stream) != Z_OK)
        return problem_no_memory(problem);
    bool done = shrink(&stream, pieces, count, output);
    zlib.deflate_end(&stream);
    return done || problem_no_memory(problem);
}
