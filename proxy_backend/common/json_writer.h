/* Writes JSON strings. json/numbers.h of the frontend writes doubles and floats; buffer_put_signed and
 * buffer_put_unsigned write integers.
 */
#ifndef PYTRITON_COMMON_JSON_WRITER_H
#define PYTRITON_COMMON_JSON_WRITER_H

#include "common/buffer.h"

/* Write a string with quotes. Returns false and writes nothing if it is not valid UTF-8. */
bool json_put_string(Buffer *text, Slice string);
/* Write a string with quotes. Each byte that is not valid UTF-8 becomes a question mark. */
void json_put_sanitized(Buffer *text, Slice string);

#endif
