/* Strings of JSON. */
#ifndef PYTRITON_FRONTEND_JSON_STRINGS_H
#define PYTRITON_FRONTEND_JSON_STRINGS_H

#include "common/buffer.h"

/* Read a string; `at` points to its quote. Its contents are appended to `text` unless that is NULL. Returns what is
 * wrong at `at`; NULL: nothing, and `at` is after it.
 */
const char *json_read_string(const char **at, const char *end, Buffer *text, bool *escaped);

#endif
