/* Writes JSON to a Buffer. For non-integers see number_put_double and number_put_float of json/numbers.h; for integers
 * buffer_put_signed and buffer_put_unsigned.
 */
#ifndef PYTRITON_COMMON_JSON_WRITER_H
#define PYTRITON_COMMON_JSON_WRITER_H

#include "common/buffer.h"

/* Write a string in quotes. Returns false, and writes nothing, if it is not valid UTF-8. */
bool json_put_string(Buffer *text, Slice string);
/* Write a string in quotes, with '?' for each invalid byte. */
void json_put_sanitized(Buffer *text, Slice string);

#endif
