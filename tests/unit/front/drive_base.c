#include "driver.h"

#include "memory/blocks.h"
#include "base/compression.h"
#include "base/digest.h"
#include "base/names.h"
#include "base/utf8.h"

#include <stdlib.h>

void run_utf8(Slice question, Text *answer)
{
    text_put_unsigned(answer, utf8_valid_prefix(question.start, question.size));
}

void run_mend(Slice question, Text *answer)
{
    char *place = text_extend(answer, question.size);
    if (question.size)
        memcpy(place, question.start, question.size);
    answer->size = 1 + utf8_mend(place, question.size);
}

/* A history: '+' name, '-' name, '?' name; values are numbers that count up. Answers what each returned, then all that is left. */
void run_names(Slice question, Text *answer)
{
    Names names = {0};
    uintptr_t value = 0;
    while (question.size) {
        char step = (char)cut_number(&question, 1);
        Slice name = cut_slice(&question);
        if (step == '+')
            text_put_unsigned(answer, names_put(&names, name, (void *)++value));
        else
            text_put_unsigned(answer, (uintptr_t)(step == '-' ? names_remove(&names, name) : names_get(&names, name)));
        text_put_char(answer, ' ');
    }
    text_put_char(answer, '\n');
    size_t position = 0, count = 0;
    Slice name;
    void *kept;
    for (; names_next(&names, &position, &name, &kept); count++) {
        text_put_slice(answer, name);
        text_format(answer, "=%zu\n", (size_t)(uintptr_t)kept);
    }
    if (count != names.count)
        abort();
    names_free(&names);
}

/* A size of four bytes: the digest of what follows, given in pieces of that size, with the key of the standard's examples. */
void run_digest(Slice question, Text *answer)
{
    const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    size_t piece = cut_number(&question, 4);
    Digest digest;
    uint64_t value[2];
    digest_begin(&digest, key);
    for (; question.size; question = slice_after(question, piece < question.size ? piece : question.size))
        digest_put(&digest, question.start, piece < question.size ? piece : question.size);
    digest_end(&digest, value);
    text_put(answer, value, sizeof value);
}

void run_expand(Slice question, Text *answer)
{
    Compression compression = (Compression)cut_number(&question, 1);
    uint64_t limit = cut_number(&question, 8);
    Problem problem = {0};
    if (!compression_expand(compression, question, answer, limit, &problem))
        answer_problem(answer, &problem);
}

void run_shrink(Slice question, Text *answer)
{
    Compression compression = (Compression)cut_number(&question, 1);
    Slice pieces[64];
    size_t count = 0;
    while (question.size && count < 64)
        pieces[count++] = cut_slice(&question);
    Problem problem = {0};
    if (!compression_shrink(compression, pieces, count, answer, &problem))
        answer_problem(answer, &problem);
}

/* A history, of steps of 9 bytes: 't' takes SIZE bytes, 'g' gives back the one taken as SIZE-th, 'd' drops. Answers for each 't' which one it was
 * before, if any, and for each 'd' how it ended. */
void run_blocks(Slice question, Text *answer)
{
    enum { MOST = 100 };
    char *taken[MOST];
    bool given[MOST] = {false};
    size_t count = 0;
    while (question.size && count < MOST) {
        char step = (char)cut_number(&question, 1);
        size_t number = cut_number(&question, 8);
        if (step == 't') {
            char *block = taken[count] = block_take(number);
            if (block == NULL)
                abort();
            memset(block, (int)count, number);
            size_t same = count;
            for (size_t i = count; i-- > 0;)
                if (taken[i] == block)
                    same = i;
            text_format(answer, "%zu ", same);
            count++;
        } else if (step == 'g') {
            block_give(taken[number]);
            given[number] = true;
        } else {
            text_format(answer, blocks_drop() ? "left " : "empty ");
        }
    }
    for (size_t i = 0; i < count; i++)
        if (!given[i])
            block_give(taken[i]);
}
