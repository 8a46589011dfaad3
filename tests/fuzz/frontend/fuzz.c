/* Targets of libFuzzer: the frontend's parsers, each by the function of tests/native/frontend that drives it. Compiled with -DTARGET=run_json and the like; with
 * -DREPLAY by any compiler, to run the files that it is given.
 *
 * What is found is a finding of the sanitizers, or an abort: run_json does that where what is read and what is passed over are judged differently.
 */
#include "../../native/frontend/driver.h"

#include "base/compression.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef TARGET
#error "-DTARGET= says which function is fuzzed"
#endif

#define NAME_OF(target) #target
#define NAME(target) NAME_OF(target)

static void put_number(Buffer *text, uint64_t number, size_t bytes)
{
    buffer_put(text, &number, bytes);
}

/* Limits before the input, of which the first bytes choose; false: it is too short. */
static bool put_limits(Buffer *question, Slice *input)
{
    const char *name = NAME(TARGET);
    if (input->size < 2)
        return false;
    unsigned first = (unsigned char)input->start[0], second = (unsigned char)input->start[1];
    *input = slice_after(*input, 2);
    if (strcmp(name, "run_json") == 0 || strcmp(name, "run_leaves") == 0 || strcmp(name, "run_later") == 0) {
        put_number(question, first, 4);
        put_number(question, second < 200 ? 1 << 20 : second, 8);
        put_number(question, second % 2 ? 1 << 20 : 16, 8);
    } else if (strcmp(name, "run_head") == 0) {
        put_number(question, 100, 4);
        put_number(question, first < 200 ? 4096 : first, 4);
        put_number(question, 10, 4);
        put_number(question, second + 1, 4);
    } else if (strcmp(name, "run_chunks") == 0) {
        put_number(question, first < 200 ? 1 << 20 : first, 8);
        put_number(question, 1000, 8);
        put_number(question, second + 1, 4);
    } else if (strcmp(name, "run_infer") == 0) {
        put_number(question, first << 8 | second, 4);
    } else if (strcmp(name, "run_routes") == 0) {
        /* The target ends at the first line break, behind which the document begins. */
        const char *end = memchr(input->start, '\n', input->size);
        size_t size = end ? (size_t)(end - input->start) : 0;
        put_number(question, size, 4);
    } else if (strcmp(name, "run_expand") == 0) {
        put_number(question, first % 2 + 1, 1);
        put_number(question, second << 8, 8);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Problem problem = {0};
    if (!compression_is_loaded() && !compression_load(NULL, &problem))
        abort();
    Buffer question = {0}, response = {0};
    Slice input = {(const char *)data, size};
    if (put_limits(&question, &input)) {
        buffer_put_slice(&question, input);
        /* Of exactly its size, so that reading beyond it is noticed. */
        Slice copy = apart(buffer_slice(&question));
        TARGET(copy, &response);
        free((char *)(uintptr_t)copy.start);
    }
    buffer_free(&question);
    buffer_free(&response);
    return 0;
}

#ifdef REPLAY
int main(int count, char **files)
{
    for (int i = 1; i < count; i++) {
        static uint8_t data[1 << 20];
        FILE *file = fopen(files[i], "rb");
        if (file == NULL) {
            perror(files[i]);
            return 1;
        }
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%d inputs\n", count - 1);
    return 0;
}
#endif
