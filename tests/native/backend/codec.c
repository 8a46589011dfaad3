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
    Slice text;
    switch (msgpack_kind(in)) {
    case MSGPACK_NIL:
        msgpack_get_nil(in);
        msgpack_put_nil(out);
        break;
    case MSGPACK_BOOL:
        msgpack_put_bool(out, msgpack_get_bool(in));
        break;
    case MSGPACK_INT:
        if (*in->next == 0xcf)
            msgpack_put_uint(out, msgpack_get_uint(in));
        else
            msgpack_put_int(out, msgpack_get_int(in));
        break;
    case MSGPACK_FLOAT:
        put_double(out, msgpack_get_double(in));
        break;
    case MSGPACK_TEXT:
        text = msgpack_get_text(in);
        msgpack_put_text(out, text.start, text.size);
        break;
    case MSGPACK_ARRAY:
        count = msgpack_get_array(in);
        msgpack_put_array(out, count);
        for (; count; count--)
            rewrite(in, out);
        break;
    case MSGPACK_MAP:
        count = msgpack_get_map(in);
        msgpack_put_map(out, count);
        for (count *= 2; count; count--)
            rewrite(in, out);
        break;
    default: /* what no message of ours has, an element that is not known */
        msgpack_skip(in, 0);
        msgpack_put_nil(out);
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
        Reader message = msgpack_read(bytes, size);
        ShapeError shape_error;
        if (message_is_valid(message, sets[set], &shape_error)) {
            Buffer again = {0};
            rewrite(&message, &again);
            say(1, again.data, again.size);
            if (message.malformed || again.failed)
                return 1;
            buffer_free(&again);
        } else {
            say(0, shape_error.text, strlen(shape_error.text));
        }
        free(bytes);
    }
    return 0;
}
