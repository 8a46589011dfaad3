/* Text: printf into memory, pieces of a message, and UTF-8. */
#ifndef PYTRITON_TEXT_H
#define PYTRITON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* printf into a text for free(). Never NULL, which would often mean that nothing is wrong: where there is no memory for a line
 * of text the process ends, as tritonserver does when one of its own allocations fails. */
char *texted(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));

/* A piece of text in a message: not terminated. */
typedef struct {
    const char *start;
    size_t size;
} Text;

bool text_is(Text text, const char *what);
/* A copy that ends with NUL, for free(). NULL without memory, and where the text itself has a NUL. */
char *text_copy(Text text);
/* The same for text that people read: each NUL becomes a question mark. NULL without memory. */
char *text_without_nul(Text text);
/* The bytes of the character of UTF-8 that begins here; 0: there is none. At least one byte is left. */
size_t character_size(const char *start, size_t left);
bool is_utf8(Text text);

#endif
