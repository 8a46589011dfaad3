#include "common/json_writer.h"

#include "common/utf8.h"

/* Write a control character, quote or backslash. */
static void put_escaped(Buffer *text, unsigned char byte)
{
    static const char letters[256] = {
        ['"'] = '"', ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    if (letters[byte]) {
        buffer_put(text, (char[]){'\\', letters[byte]}, 2);
    } else {
        const char *digits = "0123456789ABCDEF";
        buffer_put(text, (char[]){'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]}, 6);
    }
}

/* Write valid UTF-8 with the escapes of JSON. */
static void put_valid(Buffer *text, Slice string)
{
    size_t begin = 0;
    for (size_t i = 0; i < string.size; i++) {
        unsigned char byte = (unsigned char)string.start[i];
        if (byte >= ' ' && byte != '"' && byte != '\\')
            continue;
        buffer_put(text, string.start + begin, i - begin);
        put_escaped(text, byte);
        begin = i + 1;
    }
    buffer_put(text, string.start + begin, string.size - begin);
}

bool json_put_string(Buffer *text, Slice string)
{
    if (!utf8_is_valid(string))
        return false;
    buffer_put_char(text, '"');
    put_valid(text, string);
    buffer_put_char(text, '"');
    return true;
}

void json_put_sanitized(Buffer *text, Slice string)
{
    buffer_put_char(text, '"');
    for (;;) {
        size_t valid = utf8_valid_prefix(string.start, string.size);
        put_valid(text, (Slice){string.start, valid});
        if (valid == string.size)
            break;
        buffer_put_char(text, '?');
        string = slice_after(string, valid + 1);
    }
    buffer_put_char(text, '"');
}
