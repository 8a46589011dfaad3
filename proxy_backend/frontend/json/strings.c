#include "json/strings.h"

#include "common/utf8.h"

/* Returns whether one of eight bytes is a quote, a backslash, or below a space. */
static bool has_special(uint64_t word)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
    return (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - ones * ' ') & ~word)) & tops;
}

/* Returns the end of the part up to the next quote or backslash. NULL if it contains an invalid byte. */
static const char *piece_end(const char *at, const char *end)
{
    uint64_t word;
    for (; (size_t)(end - at) >= sizeof word; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        if (has_special(word))
            break;
    }
    while (at < end && *at != '"' && *at != '\\') {
        if ((unsigned char)*at < ' ')
            return NULL;
        at++;
    }
    return at < end ? at : NULL;
}

/* Read four hexadecimal digits. Returns false if there are others. */
static bool hexadecimal(const char *at, const char *end, uint32_t *code)
{
    if (end - at < 4)
        return false;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char digit = at[i];
        uint32_t value = digit >= '0' && digit <= '9'        ? (uint32_t)(digit - '0')
            : (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f' ? (uint32_t)((digit | 0x20) - 'a' + 10)
                                                             : 16;
        if (value > 15)
            return false;
        *code = *code << 4 | value;
    }
    return true;
}

/* Read "uXXXX", and the second half of a surrogate pair. */
static const char *unicode_escape(const char **at, const char *end, Buffer *text)
{
    uint32_t code, low;
    if (!hexadecimal(*at + 1, end, &code))
        return "Incorrect hex digit after \\u escape in string";
    *at += 5;
    if (code >= 0xd800 && code <= 0xdfff) {
        if (code > 0xdbff || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u' || !hexadecimal(*at + 2, end, &low) ||
            low < 0xdc00 || low > 0xdfff)
            return "The surrogate pair in string is invalid";
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        *at += 6;
    }
    char bytes[4];
    size_t size = utf8_encode(code, bytes);
    if (text)
        buffer_put(text, bytes, size);
    return NULL;
}

/* Read what follows a backslash. */
static const char *escape(const char **at, const char *end, Buffer *text)
{
    static const char plain[256] = {
        ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};
    if (*at == end)
        return "Missing a closing quotation mark in string";
    if (**at == 'u')
        return unicode_escape(at, end, text);
    char byte = plain[(unsigned char)**at];
    if (byte == 0)
        return "Invalid escape character in string";
    ++*at;
    if (text)
        buffer_put_char(text, byte);
    return NULL;
}

const char *json_read_string(const char **at, const char *end, Buffer *text, bool *escaped)
{
    *escaped = false;
    for (++*at;;) {
        const char *piece = piece_end(*at, end);
        if (piece == NULL)
            return "A string has no closing quotation mark, or a control character that is not escaped";
        if (text)
            buffer_put(text, *at, (size_t)(piece - *at));
        *at = piece + 1;
        if (*piece == '"')
            return NULL;
        *escaped = true;
        const char *wrong = escape(at, end, text);
        if (wrong)
            return wrong;
    }
}
