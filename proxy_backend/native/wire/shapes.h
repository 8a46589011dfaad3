/* Validates messages against the declarations in pytriton/_protocol: accepts exactly what msgspec accepts at the
 * other end.
 */
#ifndef PYTRITON_SHAPES_H
#define PYTRITON_SHAPES_H

#include "wire/declarations.h"
#include "wire/msgpack.h"

/* Why a value is not a valid message. */
typedef struct {
    char text[120];
} Misfit;

/* Check a complete message, which must be one of `messages`. Returns false; `misfit` then has the reason and the
 * place.
 */
bool message_fits(Reader message, const Declared *const *messages, Misfit *misfit);

#endif
