/* The path of a request, split into segments. These are decoded separately, so that "%2F" can be part of a name. */
#ifndef PYTRITON_FRONTEND_HTTP1_TARGET_H
#define PYTRITON_FRONTEND_HTTP1_TARGET_H

#include "base/problem.h"

enum { TARGET_SEGMENTS = 12, TARGET_BYTES = 2048 };

/* The segments of a path: "/v2/models/a%20b" has "v2", "models" and "a b", and "/" has an empty one. They point into
 * `text`.
 */
typedef struct {
    uint32_t count;
    Slice segments[TARGET_SEGMENTS];
    char text[TARGET_BYTES];
} Target;

/* Split and decode a path. Returns false with a problem if it has too many or too long segments or invalid escapes, or
 * contains NUL or invalid UTF-8 when it is decoded.
 */
bool target_read(Target *target, Slice path, Problem *problem);

#endif
