#include "driver.h"

#include "base/compression.h"

#include <stdio.h>
#include <stdlib.h>

void response_send_problem(Buffer *response, Problem *problem)
{
    buffer_clear(response);
    buffer_format(response, "-%d %s", problem_status(problem->kind), problem_text(problem));
    problem_clear(problem);
}

uint64_t cut_number(Slice *question, int bytes)
{
    uint64_t value = 0;
    if (question->size < (size_t)bytes)
        abort();
    memcpy(&value, question->start, (size_t)bytes);
    *question = slice_after(*question, (size_t)bytes);
    return value;
}

Slice cut_slice(Slice *question)
{
    size_t size = cut_number(question, 4);
    if (question->size < size)
        abort();
    Slice part = {question->start, size};
    *question = slice_after(*question, size);
    return part;
}

Slice apart(Slice bytes)
{
    char *copy = malloc(bytes.size ? bytes.size : 1);
    if (copy == NULL)
        abort();
    if (bytes.size)
        memcpy(copy, bytes.start, bytes.size);
    return (Slice){copy, bytes.size};
}

#ifndef FUZZED /* then libFuzzer, or tests/fuzz/frontend/fuzz.c, has the main function */

static Function *const functions[256] = {['u'] = run_utf8,
    ['m'] = run_mend,
    ['n'] = run_names,
    ['g'] = run_digest,
    ['b'] = run_blocks,
    ['x'] = run_expand,
    ['X'] = run_shrink,
    ['j'] = run_json,
    ['l'] = run_leaves,
    ['L'] = run_later,
    ['d'] = run_read_double,
    ['D'] = run_write_double,
    ['F'] = run_write_float,
    ['S'] = run_write_string,
    ['h'] = run_head,
    ['k'] = run_chunks,
    ['t'] = run_target,
    ['R'] = run_routes,
    ['e'] = run_encoding,
    ['i'] = run_infer,
    ['r'] = run_unread,
    ['w'] = run_totals};

int main(int count, char **arguments)
{
    Problem problem = {0};
    if (!compression_load(count > 1 ? arguments[1] : NULL, &problem))
        fprintf(stderr, "%s\n", problem_text(&problem));
    Buffer question = {0}, response = {0};
    for (;;) {
        int name = getchar();
        uint32_t size;
        if (name == EOF || fread(&size, sizeof size, 1, stdin) != 1)
            break;
        buffer_clear(&question);
        char *place = buffer_extend(&question, size);
        if (place == NULL || fread(place, 1, size, stdin) != size || functions[name] == NULL)
            abort();
        buffer_clear(&response);
        buffer_put_char(&response, '+');
        Slice copy = apart(buffer_slice(&question));
        functions[name](copy, &response);
        free((char *)(uintptr_t)copy.start);
        size = (uint32_t)response.size;
        fwrite(&size, sizeof size, 1, stdout);
        fwrite(response.data, 1, response.size, stdout);
        fflush(stdout);
    }
    buffer_free(&question);
    buffer_free(&response);
    problem_clear(&problem);
    return 0;
}
#endif
