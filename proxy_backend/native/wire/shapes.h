/* Whether a message is as pytriton/_protocol declares it: what msgspec takes at the other end is taken here, and nothing else. */
#ifndef PYTRITON_SHAPES_H
#define PYTRITON_SHAPES_H

#include "wire/declarations.h"
#include "wire/msgpack.h"

/* The reason why something is no message. */
typedef struct {
    char text[120];
} Misfit;

/* Look at a whole message, which is to be one of `messages`. False: `misfit` says what is wrong, and where. */
bool message_fits(Reader message, const Declared *const *messages, Misfit *misfit);

#endif
