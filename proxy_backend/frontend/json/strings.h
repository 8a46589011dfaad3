/* Reads strings in JSON. */
#ifndef PYTRITON_FRONTEND_JSON_STRINGS_H
#define PYTRITON_FRONTEND_JSON_STRINGS_H

#include "common/buffer.h"

/* Read a string whose opening quote is at `at`. Its contents are appended to `text` unless it is NULL. Returns NULL,
 * after moving `at` behind the string, or the error at `at`.
 */
const char *json_read_string(const char **at, const char *end, Buffer *text, bool *escaped);

#endif
