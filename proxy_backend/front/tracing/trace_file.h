/* The file of traces: at any time a whole JSON array. */
#ifndef PYTRITON_FRONT_TRACE_FILE_H
#define PYTRITON_FRONT_TRACE_FILE_H

#include "base/text.h"

typedef struct {
    const char *path;
    int fd;             /* -1: none is open */
    uint64_t index;     /* of the next file of several */
    int64_t in_file;    /* traces that the one that is open has */
    int64_t frequency;  /* which it was opened for */
    bool failed;        /* it has been said that it cannot be written */
} TraceFile;

/* Append a trace's entries, which are objects with commas between them: to the file of all, or where `frequency` is not 0, to one of several
 * for so many traces each. */
void trace_file_put(TraceFile *file, Slice entries, int64_t frequency);
void trace_file_close(TraceFile *file);

#endif
