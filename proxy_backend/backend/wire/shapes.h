/* Validates messages against the declarations in pytriton/_protocol. Accepts exactly what msgspec accepts at the other
 * end.
 */
#ifndef PYTRITON_BACKEND_WIRE_SHAPES_H
#define PYTRITON_BACKEND_WIRE_SHAPES_H

#include "wire/declarations.h"
#include "wire/msgpack.h"

/* Why a value is not a valid message. */
typedef struct {
    char text[120];
} ShapeError;

/* Check that a complete message is one of `messages`. Returns false with the reason and its place in `shape_error`. */
bool message_is_valid(Reader message, const Declared *const *messages, ShapeError *shape_error);

#endif
