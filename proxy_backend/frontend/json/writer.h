/* Writes JSON to a Text. For non-integers see number_put_double and number_put_float of json/numbers.h; for integers
 * text_put_signed and text_put_unsigned.
 */
#ifndef PYTRITON_FRONTEND_JSON_WRITER_H
#define PYTRITON_FRONTEND_JSON_WRITER_H

#include "base/text.h"

/* Write a string in quotes. Returns false, and writes nothing, if it is not valid UTF-8. */
bool json_put_string(Text *text, Slice string);
/* Write a string in quotes, with '?' for each invalid byte. */
void json_put_sanitized(Text *text, Slice string);

#endif
