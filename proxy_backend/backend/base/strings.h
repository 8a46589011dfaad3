/* C strings on the heap, for free(). */
#ifndef PYTRITON_BACKEND_BASE_STRINGS_H
#define PYTRITON_BACKEND_BASE_STRINGS_H

#include "common/slice.h"

/* Format a string. Aborts the process if there is no memory, as tritonserver does when one of its own allocations
 * fails: a NULL would often be taken for "no error".
 */
char *strdup_printf(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
/* Returns a copy of a slice. NULL if the slice contains a NUL, or without memory. */
char *strdup_slice(Slice text);
/* Returns a copy of a slice for logs and error messages, with a question mark for each NUL. NULL without memory. */
char *strdup_printable(Slice text);

#endif
