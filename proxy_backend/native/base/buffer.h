/* Bytes that are being written. */
#ifndef PYTRITON_BUFFER_H
#define PYTRITON_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* It grows as it is written. `failed`: there was no memory for it; nothing more is written then. */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} Buffer;

void buffer_free(Buffer *buffer);
void buffer_put(Buffer *buffer, const void *bytes, size_t size);
void buffer_puts(Buffer *buffer, const char *text);

#endif
