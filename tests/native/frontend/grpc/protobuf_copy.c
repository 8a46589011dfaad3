/* Reads messages by their tables and writes them anew. On standard input: the message's number below, its size, its bytes (two
 * uint32_t before them); on standard output: whether it is valid, a size, and the copy or what is wrong. */
#include "protobuf/messages.h"

#include <stdio.h>
#include <stdlib.h>

static const ProtoMessage *const MESSAGES[] = {&MODEL_INFER_REQUEST, &MODEL_INFER_RESPONSE, &MODEL_CONFIG_RESPONSE,
    &MODEL_STATISTICS_RESPONSE, &TRACE_SETTING_REQUEST};
enum { MAX_DEPTH = 90 };

static void put(Buffer *to, const ProtoField *field, uint64_t number)
{
    if (field->type == PROTO_DOUBLE)
        proto_put_double(to, field->number, proto_double(number));
    else if (field->type == PROTO_FLOAT)
        proto_put_float(to, field->number, proto_float(number));
    else
        proto_put_number(to, field->number, number);
}

static bool copy(const ProtoMessage *message, Slice bytes, Buffer *to, Problem *problem, int depth)
{
    ProtoReader reader = proto_reader(message, bytes);
    ProtoValue value;
    ProtoNext next;
    if (depth > MAX_DEPTH)
        return problem_set(problem, PROBLEM_INVALID, "too deep");
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        const ProtoField *field = value.field;
        if (value.packed) {
            uint64_t number;
            while ((next = proto_next_packed(field->type, &value.bytes, &number)) == PROTO_FOUND)
                put(to, field, number);
            if (next == PROTO_BROKEN)
                return problem_set(problem, PROBLEM_INVALID, "packed numbers are cut off");
        } else if (field->type == PROTO_MESSAGE) {
            size_t begun = proto_begin(to, field->number);
            if (!copy(field->message, value.bytes, to, problem, depth + 1))
                return false;
            proto_end(to, begun);
        } else if (field->type == PROTO_STRING || field->type == PROTO_BYTES) {
            size_t before = to->size;
            proto_put_bytes(to, field->number, value.bytes);
            if (to->size - before != proto_bytes_size(field->number, value.bytes.size))
                abort();
        } else {
            put(to, field, value.number);
        }
    }
    return next == PROTO_END;
}

int main(void)
{
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        char *bytes = malloc(head[1] ? head[1] : 1); /* of just this size: the sanitizer sees what is read beyond it */
        if (bytes == NULL || fread(bytes, 1, head[1], stdin) != head[1])
            return 1;
        Buffer copied = {0};
        Problem problem = {0};
        uint8_t valid = copy(MESSAGES[head[0]], (Slice){bytes, head[1]}, &copied, &problem, 0);
        Slice said = valid ? buffer_slice(&copied) : slice_of(problem_text(&problem));
        uint32_t size = (uint32_t)said.size;
        fwrite(&valid, 1, 1, stdout);
        fwrite(&size, sizeof size, 1, stdout);
        fwrite(said.start, 1, said.size, stdout);
        fflush(stdout);
        buffer_free(&copied);
        problem_clear(&problem);
        free(bytes);
    }
    return 0;
}
