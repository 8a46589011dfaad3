/* Shapes of messages. The tables in declarations.c are generated from pytriton/_protocol. */
#ifndef PYTRITON_BACKEND_WIRE_DECLARATIONS_H
#define PYTRITON_BACKEND_WIRE_DECLARATIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    SHAPE_INT,
    SHAPE_FLOAT, /* integers are accepted, too */
    SHAPE_BOOL,
    SHAPE_TEXT,
    SHAPE_INT_OR_TEXT,
    SHAPE_TEXTS, /* a map from texts to texts */
    SHAPE_LIST,
    SHAPE_STRUCT,
} ShapeKind;

typedef struct Shape {
    ShapeKind kind;
    bool optional; /* nil is allowed */
    const struct Shape *item; /* for lists */
    const struct Declared *declared; /* for structs */
    const char *const *choices; /* allowed values of a text, terminated by NULL; NULL allows any */
} Shape;

typedef struct {
    const char *name;
    bool required;
    Shape shape;
} Field;

/* A message or a part of one: an array, or a map that has no other fields. */
typedef struct Declared {
    const char *name; /* the message's name; NULL for a part */
    bool is_map;
    uint32_t count;
    const Field *fields;
} Declared;

/* The messages on lanes, about calls, and on the control socket. Each array is terminated by NULL. */
extern const Declared *const lane_messages[];
extern const Declared *const call_messages[];
extern const Declared *const control_messages[];

#endif
