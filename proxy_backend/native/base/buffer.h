/* A buffer that grows while it is written. */
#ifndef PYTRITON_BUFFER_H
#define PYTRITON_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `failed`: there was no memory, and nothing more is written. */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} Buffer;

void buffer_free(Buffer *buffer);
void buffer_put(Buffer *buffer, const void *bytes, size_t size);
void buffer_puts(Buffer *buffer, const char *text);

#endif
