/* The JSON that a proxy meets: a model's configuration, and flat objects of parameters. */
#ifndef PYTRITON_JSON_H
#define PYTRITON_JSON_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>

/* A value in a text of JSON: where it begins, and where the text ends. `start` NULL: there is none. */
typedef struct {
    const char *start, *end;
} Json;

/* The value of a key of an object; `start` is NULL if the key is missing, or the text is no object. */
Json json_find(Json object, const char *key);
/* The members of an object one after the other: begin with `next` = the object. False: there are no more. */
typedef struct {
    Json key, value;
    const char *next;
} JsonMember;
bool json_first(Json object, JsonMember *member);
bool json_next(Json object, JsonMember *member);
/* The elements of an array, in the same way; `key` stays empty. */
bool json_first_element(Json array, JsonMember *element);
bool json_next_element(Json array, JsonMember *element);
/* Returns whether the value is a string; and a copy of a string for free(), NULL if it is none. */
bool json_is_string(Json value);
char *json_string(Json value);
bool json_is(Json value, const char *literal);

/* Write a string with its quotes. */
void json_put_string(Buffer *buffer, const char *text, size_t size);

#endif
