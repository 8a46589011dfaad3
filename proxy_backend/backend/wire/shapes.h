/* Validates messages against the declarations in pytriton/_protocol: accepts exactly what msgspec accepts at the
 * other end.
 */
#ifndef PYTRITON_BACKEND_WIRE_SHAPES_H
#define PYTRITON_BACKEND_WIRE_SHAPES_H

#include "wire/declarations.h"
#include "wire/msgpack.h"

/* Why a value is not a valid message. */
typedef struct {
    char text[120];
} ShapeError;

/* Check a complete message, which must be one of `messages`. Returns false; `shape_error` then has the reason and the
 * place.
 */
bool message_is_valid(Reader message, const Declared *const *messages, ShapeError *shape_error);

#endif
