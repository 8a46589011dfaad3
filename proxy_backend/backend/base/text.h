/* Text: printf to memory, slices of a message, and UTF-8. */
#ifndef PYTRITON_BACKEND_BASE_TEXT_H
#define PYTRITON_BACKEND_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Format a text for free(). Never returns NULL, which often means "no error": without memory for a line of text the
 * process ends, as tritonserver does when one of its own allocations fails.
 */
char *strdup_printf(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));

/* A slice of text in a message: not terminated. */
typedef struct {
    const char *start;
    size_t size;
} Text;

bool text_equals(Text text, const char *what);
/* Returns a copy that ends with NUL, for free(). NULL without memory, or if the text contains a NUL. */
char *text_copy(Text text);
/* Returns a copy of text for humans: each NUL becomes a question mark. NULL without memory. */
char *text_without_nul(Text text);
/* Returns the size of the UTF-8 character that begins here; 0: invalid. At least one byte must be left. */
size_t utf8_char_size(const char *start, size_t left);
bool utf8_is_valid(Text text);

#endif
