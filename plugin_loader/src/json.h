/* A strict reader of JSON (RFC 8259) that changes the text it reads: texts are decoded in place. */
#ifndef ARCHSPLIT_JSON_H
#define ARCHSPLIT_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    char *at;          /* the next byte; all of them end with a NUL */
    unsigned depth;    /* of the objects and arrays around it */
    const char *fault; /* the first fault, or NULL */
};

/* Begin to read `size` bytes with a NUL behind them; false unless they are UTF-8 without a NUL. */
bool json_begin(struct json *json, char *bytes, size_t size);

/* Read a text. It is ended by a NUL, has none inside, and lies in the bytes that are read. */
bool json_text(struct json *json, char **text);

/* Read an object. `member` is called behind each colon, and reads the value. */
typedef bool (*json_member)(struct json *json, char *name, void *context);
bool json_object(struct json *json, json_member member, void *context);

/* Read any value, and forget it. */
bool json_skip(struct json *json);

/* True if the next value begins with this character; for texts, objects and the like. */
bool json_is(const struct json *json, char first);

/* True if nothing but space is left. */
bool json_end(struct json *json);

#endif
