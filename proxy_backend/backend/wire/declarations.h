/* The shapes of messages: declarations.c has the tables, generated from pytriton/_protocol. */
#ifndef PYTRITON_BACKEND_WIRE_DECLARATIONS_H
#define PYTRITON_BACKEND_WIRE_DECLARATIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    SHAPE_INT,
    SHAPE_FLOAT, /* or an integer */
    SHAPE_BOOL,
    SHAPE_TEXT,
    SHAPE_INT_OR_TEXT,
    SHAPE_TEXTS, /* a map from text to text */
    SHAPE_LIST,
    SHAPE_STRUCT,
} ShapeKind;

typedef struct Shape {
    ShapeKind kind;
    bool optional; /* nil is allowed */
    const struct Shape *item; /* of a list */
    const struct Declared *declared; /* of a struct */
    const char *const *choices; /* allowed values of a text, NULL-terminated; NULL: any */
} Shape;

typedef struct {
    const char *name;
    bool required;
    Shape shape;
} Field;

/* A message or a part of one: an array, or a map without other fields. */
typedef struct Declared {
    const char *name; /* of a message; else NULL */
    bool is_map;
    uint32_t count;
    const Field *fields;
} Declared;

/* The messages on lanes, about calls, and on the control socket; NULL-terminated. */
extern const Declared *const lane_messages[];
extern const Declared *const call_messages[];
extern const Declared *const control_messages[];

#endif
