/* The path of a request: its segments, each decoded separately, so that "%2F" is part of a name. */
#ifndef PYTRITON_FRONTEND_HTTP1_TARGET_H
#define PYTRITON_FRONTEND_HTTP1_TARGET_H

#include "base/problem.h"

enum { TARGET_SEGMENTS = 12, TARGET_BYTES = 2048 };

/* "/v2/models/a%20b" has the segments "v2", "models" and "a b"; "/" has one, which is empty. They point into `text`. */
typedef struct {
    uint32_t count;
    Slice segments[TARGET_SEGMENTS];
    char text[TARGET_BYTES];
} Target;

/* Returns false if it has too many or too long segments, invalid escapes, or its decoded form is not UTF-8 or
 * contains NUL.
 */
bool target_read(Target *target, Slice path, Problem *problem);

#endif
