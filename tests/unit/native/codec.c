/* The compiled proxy's half of the protocol, for tests: reads messages from the standard input, and says of each whether it is
 * as declared, and what it is after every value has been read and written again.
 *
 *     in   the number of a set of messages (1 byte), the length (4 bytes, as this machine has it), the message
 *     out  1 if it fits, else 0 (1 byte), the length, and the message as it was written again, or why it does not fit
 */
#include "wire/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Declared *const *const sets[] = {lane_messages, call_messages, control_messages};

static void put_double(Buffer *out, double value)
{
    uint64_t bits;
    uint8_t bytes[9] = {0xcb};
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++)
        bytes[1 + i] = (uint8_t)(bits >> (8 * (7 - i)));
    buffer_put(out, bytes, sizeof bytes);
}

/* Write the next value again. */
static void rewrite(Reader *in, Buffer *out)
{
    uint32_t count = 0;
    Text text;
    switch (kind_of(in)) {
    case KIND_NIL:
        get_nil(in);
        put_nil(out);
        break;
    case KIND_BOOL:
        put_bool(out, get_bool(in));
        break;
    case KIND_INT:
        if (*in->next == 0xcf)
            put_uint(out, get_uint(in));
        else
            put_int(out, get_int(in));
        break;
    case KIND_FLOAT:
        put_double(out, get_double(in));
        break;
    case KIND_TEXT:
        text = get_text(in);
        put_text(out, text.start, text.size);
        break;
    case KIND_ARRAY:
        count = get_array(in);
        put_array(out, count);
        for (; count; count--)
            rewrite(in, out);
        break;
    case KIND_MAP:
        count = get_map(in);
        put_map(out, count);
        for (count *= 2; count; count--)
            rewrite(in, out);
        break;
    default: /* what no message of ours has, an element that is not known */
        skip(in, 0);
        put_nil(out);
    }
}

static void say(uint8_t fits, const void *bytes, size_t size)
{
    uint32_t length = (uint32_t)size;
    fwrite(&fits, 1, 1, stdout);
    fwrite(&length, sizeof length, 1, stdout);
    fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    uint8_t set;
    uint32_t size;
    while (fread(&set, 1, 1, stdin) == 1 && fread(&size, sizeof size, 1, stdin) == 1 && set < 3) {
        uint8_t *bytes = malloc(size ? size : 1); /* of its own size, so that AddressSanitizer sees who reads on */
        if (bytes == NULL || fread(bytes, 1, size, stdin) != size)
            return 1;
        Reader message = {bytes, bytes + size, false};
        Misfit misfit;
        if (message_fits(message, sets[set], &misfit)) {
            Buffer again = {0};
            rewrite(&message, &again);
            say(1, again.data, again.size);
            if (message.malformed || again.failed)
                return 1;
            buffer_free(&again);
        } else {
            say(0, misfit.text, strlen(misfit.text));
        }
        free(bytes);
    }
    return 0;
}
