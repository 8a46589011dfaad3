/* The JSON that a proxy reads: a model's configuration, and flat objects of parameters. */
#ifndef PYTRITON_BACKEND_BASE_JSON_H
#define PYTRITON_BACKEND_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A value in a JSON text: its start, and the end of the text. `start` NULL: no value. */
typedef struct {
    const char *start, *end;
} Json;

/* Returns the value of an object's key; `start` is NULL if the key is missing or the text is not an object. */
Json json_find(Json object, const char *key);
/* Iterate over an object's members: begin with `next` = the object. Returns false at the end. */
typedef struct {
    Json key, value;
    const char *next;
} JsonMember;
bool json_first(Json object, JsonMember *member);
bool json_next(Json object, JsonMember *member);
/* Iterate over an array's elements in the same way; `key` stays empty. */
bool json_first_element(Json array, JsonMember *element);
bool json_next_element(Json array, JsonMember *element);
/* Returns whether the value is a string; returns a copy of a string for free(), NULL if it is not a string. */
bool json_is_string(Json value);
char *json_string(Json value);
bool json_is(Json value, const char *literal);

#endif
