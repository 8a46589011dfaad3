/* The trace file: always a complete JSON array. */
#ifndef PYTRITON_FRONTEND_TRACING_TRACE_FILE_H
#define PYTRITON_FRONTEND_TRACING_TRACE_FILE_H

#include "common/buffer.h"

typedef struct {
    const char *path;
    int fd;             /* -1: none is open */
    uint64_t index;     /* of the next file, if there are several */
    int64_t in_file;    /* traces in the open file */
    int64_t frequency;  /* the frequency that it was opened for */
    bool failed;        /* a write error has been logged */
} TraceFile;

/* Append a trace's entries, comma-separated objects, to the single file, or if `frequency` is not 0, to one file per
 * that many traces.
 */
void trace_file_put(TraceFile *file, Slice entries, int64_t frequency);
void trace_file_close(TraceFile *file);

#endif
