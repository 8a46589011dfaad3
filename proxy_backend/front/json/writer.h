/* Writing JSON into a Text. Numbers that are not integers: number_put_double and number_put_float of json/numbers.h;
 * integers: text_put_signed and text_put_unsigned. */
#ifndef PYTRITON_FRONT_JSON_WRITER_H
#define PYTRITON_FRONT_JSON_WRITER_H

#include "base/text.h"

/* Write a string with its quotes. False: it is not valid UTF-8, and nothing has been written. */
bool json_put_string(Text *text, Slice string);
/* The same, with '?' for each byte that is not valid. */
void json_put_mended(Text *text, Slice string);

#endif
