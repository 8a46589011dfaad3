/* The trace file. It is a complete JSON array at any time. */
#ifndef PYTRITON_FRONTEND_TRACING_TRACE_FILE_H
#define PYTRITON_FRONTEND_TRACING_TRACE_FILE_H

#include "common/buffer.h"

typedef struct {
    const char *path;
    int fd;             /* -1 if no file is open */
    uint64_t index;     /* index of the next file, if there are several */
    int64_t in_file;    /* number of traces in the open file */
    int64_t frequency;  /* value of `frequency` when the file was opened */
    bool failed;        /* a write error has been logged */
} TraceFile;

/* Append the entries of a trace, which are objects separated by commas. If `frequency` is not 0, begin another file
 * after this many traces.
 */
void trace_file_put(TraceFile *file, Slice entries, int64_t frequency);
void trace_file_close(TraceFile *file);

#endif
