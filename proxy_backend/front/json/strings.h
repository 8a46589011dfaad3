/* Strings of JSON. */
#ifndef PYTRITON_FRONT_JSON_STRINGS_H
#define PYTRITON_FRONT_JSON_STRINGS_H

#include "base/text.h"

/* Read a string, at whose quote `at` stands; what it says is appended to `text`, where that is not NULL. Returns what is wrong at
 * `at`; NULL: nothing, and `at` stands after it. */
const char *string_read(const char **at, const char *end, Text *text, bool *escaped);

#endif
