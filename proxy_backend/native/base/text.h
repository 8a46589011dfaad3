/* Text: made by printf, pieces of it in what is read, and whether it is valid UTF-8. */
#ifndef PYTRITON_TEXT_H
#define PYTRITON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* printf into a text for free(); never NULL but without memory. */
char *texted(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A piece of text in what is read: not terminated. */
typedef struct {
    const char *start;
    size_t size;
} Text;

bool text_is(Text text, const char *what);
/* A copy that ends with NUL, for free(). NULL without memory, and where the text itself has a NUL. */
char *text_copy(Text text);
/* The same of what is for people's eyes: each NUL becomes a question mark. NULL without memory. */
char *text_without_nul(Text text);
/* The bytes of the character of UTF-8 that begins here; 0: there is none. At least one byte is left. */
size_t character_size(const char *start, size_t left);
bool is_utf8(Text text);

#endif
