#include "driver.h"

#include "common/blocks.h"
#include "base/compression.h"
#include "base/digest.h"
#include "base/name_table.h"
#include "common/utf8.h"

#include <stdlib.h>

void run_utf8(Slice question, Buffer *response)
{
    buffer_put_unsigned(response, utf8_valid_prefix(question.start, question.size));
}

void run_mend(Slice question, Buffer *response)
{
    char *place = buffer_extend(response, question.size);
    if (question.size)
        memcpy(place, question.start, question.size);
    response->size = 1 + utf8_sanitize(place, question.size);
}

/* A history: '+' name, '-' name, '?' name; values are numbers that count up. Answers what each returned, then all that is left. */
void run_names(Slice question, Buffer *response)
{
    NameTable names = {0};
    uintptr_t value = 0;
    while (question.size) {
        char step = (char)cut_number(&question, 1);
        Slice name = cut_slice(&question);
        if (step == '+')
            buffer_put_unsigned(response, name_table_put(&names, name, (void *)++value));
        else
            buffer_put_unsigned(
                response, (uintptr_t)(step == '-' ? name_table_remove(&names, name) : name_table_get(&names, name)));
        buffer_put_char(response, ' ');
    }
    buffer_put_char(response, '\n');
    size_t position = 0, count = 0;
    Slice name;
    void *kept;
    for (; name_table_next(&names, &position, &name, &kept); count++) {
        buffer_put_slice(response, name);
        buffer_format(response, "=%zu\n", (size_t)(uintptr_t)kept);
    }
    if (count != names.count)
        abort();
    name_table_free(&names);
}

/* A size of four bytes: the digest of what follows, given in pieces of that size, with the key of the standard's examples. */
void run_digest(Slice question, Buffer *response)
{
    const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    size_t piece = cut_number(&question, 4);
    Digest digest;
    uint64_t value[2];
    digest_begin(&digest, key);
    for (; question.size; question = slice_after(question, piece < question.size ? piece : question.size))
        digest_put(&digest, question.start, piece < question.size ? piece : question.size);
    digest_end(&digest, value);
    buffer_put(response, value, sizeof value);
}

void run_expand(Slice question, Buffer *response)
{
    Compression compression = (Compression)cut_number(&question, 1);
    uint64_t limit = cut_number(&question, 8);
    Problem problem = {0};
    if (!compression_expand(compression, question, response, limit, &problem))
        response_send_problem(response, &problem);
}

void run_shrink(Slice question, Buffer *response)
{
    Compression compression = (Compression)cut_number(&question, 1);
    Slice pieces[64];
    size_t count = 0;
    while (question.size && count < 64)
        pieces[count++] = cut_slice(&question);
    Problem problem = {0};
    if (!compression_shrink(compression, pieces, count, response, &problem))
        response_send_problem(response, &problem);
}

/* A history, of steps of 9 bytes: 't' takes SIZE bytes, 'g' gives back the one taken as SIZE-th, 'd' drops. Answers for each 't' which one it was
 * before, if any, and for each 'd' how it ended. */
void run_blocks(Slice question, Buffer *response)
{
    enum { MOST = 100 };
    char *taken[MOST];
    bool given[MOST] = {false};
    size_t count = 0;
    blocks_enable_cache();
    while (question.size && count < MOST) {
        char step = (char)cut_number(&question, 1);
        size_t number = cut_number(&question, 8);
        if (step == 't') {
            char *block = taken[count] = block_allocate(number);
            if (block == NULL)
                abort();
            memset(block, (int)count, number);
            size_t same = count;
            for (size_t i = count; i-- > 0;)
                if (taken[i] == block)
                    same = i;
            buffer_format(response, "%zu ", same);
            count++;
        } else if (step == 'g') {
            block_release(taken[number]);
            given[number] = true;
        } else {
            buffer_format(response, blocks_trim() ? "left " : "empty ");
        }
    }
    for (size_t i = 0; i < count; i++)
        if (!given[i])
            block_release(taken[i]);
}
