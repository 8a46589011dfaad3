/* Reads the JSON that a proxy gets: a model's configuration, and flat objects of parameters. */
#ifndef PYTRITON_BACKEND_BASE_JSON_H
#define PYTRITON_BACKEND_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A value within a JSON text. `start` is NULL if there is no value. */
typedef struct {
    const char *start, *end;
} Json;

/* Returns the value of a key. Its `start` is NULL if the key is missing or `object` is not an object. */
Json json_find(Json object, const char *key);
/* Iterate over the members of an object. Returns false after the last one. */
typedef struct {
    Json key, value;
    const char *next;
} JsonMember;
bool json_first(Json object, JsonMember *member);
bool json_next(Json object, JsonMember *member);
/* Iterate over the elements of an array in the same way. `key` stays empty. */
bool json_first_element(Json array, JsonMember *element);
bool json_next_element(Json array, JsonMember *element);
/* Returns a copy of a string for free(), or NULL if the value is not a string. */
char *json_string(Json value);
bool json_is(Json value, const char *literal);

#endif
