#include "tracing/trace_file.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/uio.h>
#include <unistd.h>

static void fail(TraceFile *file)
{
    if (!file->failed)
        log_error("cannot write traces to %s: %s", file->path, strerror(errno));
    file->failed = true;
}

void trace_file_close(TraceFile *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

/* Open another file at each start, and after each `frequency` traces. */
static bool open_file(TraceFile *file, int64_t frequency)
{
    if (file->fd >= 0 && file->frequency == frequency && (frequency == 0 || file->in_file < frequency))
        return true;
    bool again = file->fd >= 0 && frequency == 0 && file->frequency == 0;
    trace_file_close(file);
    Buffer path = {0};
    buffer_put_string(&path, file->path);
    if (frequency)
        buffer_format(&path, ".%" PRIu64, file->index++);
    const char *name = buffer_string(&path);
    file->fd = name ? open(name, O_WRONLY | O_CREAT | O_CLOEXEC | (again ? 0 : O_TRUNC), 0666) : -1;
    buffer_free(&path);
    file->in_file = 0;
    file->frequency = frequency;
    if (file->fd < 0)
        fail(file);
    return file->fd >= 0;
}

/* Remove an entry of which only a part was written because the disk is full, and restore the end of the array. */
static void undo(const TraceFile *file, bool first, off_t end)
{
    if (end >= 0 && ftruncate(file->fd, end) == 0 && !first && pwrite(file->fd, "]", 1, end - 1) != 1)
        log_error("%s is no longer a valid JSON array: %s", file->path, strerror(errno));
}

void trace_file_put(TraceFile *file, Slice entries, int64_t frequency)
{
    if (entries.size == 0 || !open_file(file, frequency))
        return;
    bool first = file->in_file == 0;
    /* Overwrite the bracket at the end of the array. */
    off_t end = lseek(file->fd, 0, SEEK_END);
    if (!first && end > 0)
        lseek(file->fd, end - 1, SEEK_SET);
    struct iovec parts[] = {{(void *)(uintptr_t)(first ? "[" : ","), 1},
        {(void *)(uintptr_t)entries.start, entries.size}, {(void *)(uintptr_t)"]", 1}};
    errno = ENOSPC; /* A short write means that the disk is full. */
    if (writev(file->fd, parts, sizeof parts / sizeof *parts) == (ssize_t)entries.size + 2) {
        file->in_file++;
        return;
    }
    fail(file);
    undo(file, first, end);
}
