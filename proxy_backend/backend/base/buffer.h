/* A growing write buffer. */
#ifndef PYTRITON_BACKEND_BASE_BUFFER_H
#define PYTRITON_BACKEND_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `failed`: out of memory; further writes are ignored. */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} Buffer;

void buffer_free(Buffer *buffer);
void buffer_put(Buffer *buffer, const void *bytes, size_t size);
void buffer_puts(Buffer *buffer, const char *text);

#endif
