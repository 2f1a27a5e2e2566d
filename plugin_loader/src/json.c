#include "json.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What archsplit writes is four deep. A limit keeps hostile input from using up the stack. */
enum { MOST_DEPTH = 32 };

static bool refuse(struct json *json, const char *fault) {
    if (json->fault == NULL) {
        json->fault = fault;
    }
    return false;
}

/* Length of the well-formed UTF-8 character at `at`, or 0. Source: Unicode 15, table 3-7. */
static size_t character(const unsigned char *at) {
    static const struct {
        unsigned char first, last, low, high;
        size_t length;
    } rows[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (at[0] < rows[i].first || at[0] > rows[i].last) {
            continue;
        }
        if (rows[i].length > 1 && (at[1] < rows[i].low || at[1] > rows[i].high)) {
            return 0;
        }
        /* The NUL behind all bytes is no continuation, so this doesn't run over the end. */
        for (size_t more = 2; more < rows[i].length; more++) {
            if ((at[more] & 0xc0) != 0x80) {
                return 0;
            }
        }
        return rows[i].length;
    }
    return 0;
}

bool json_begin(struct json *json, char *bytes, size_t size) {
    *json = (struct json){.at = bytes};
    size_t length = 1;
    for (size_t done = 0; done < size; done += length) {
        length = character((unsigned char *)bytes + done);
        if (length == 0) {
            return refuse(json, "it is not UTF-8");
        }
    }
    return true;
}

static void skip_space(struct json *json) {
    json->at += strspn(json->at, " \t\n\r");
}

static bool take(struct json *json, char expected) {
    skip_space(json);
    bool is_there = *json->at == expected;
    json->at += is_there;
    return is_there;
}

bool json_is(const struct json *json, char first) {
    return json->at[strspn(json->at, " \t\n\r")] == first;
}

bool json_end(struct json *json) {
    skip_space(json);
    return *json->at == '\0' || refuse(json, "there is more behind its end");
}

static bool read_hex(struct json *json, uint32_t *value) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    *value = 0;
    for (int i = 0; i < 4; i++) {
        /* strchr finds the NUL at the end too. */
        const char *digit = *json->at != '\0' ? strchr(digits, *json->at) : NULL;
        if (digit == NULL) {
            return refuse(json, "\\u needs four hexadecimal digits");
        }
        *value = *value * 16 + (uint32_t)((digit - digits) % 16);
        json->at++;
    }
    return true;
}

static void put_character(char **to, uint32_t code) {
    if (code < 0x80) {
        *(*to)++ = (char)code;
        return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *(*to)++ = (char)((0xff00 >> (more + 1) & 0xff) | code >> (6 * more));
    while (more-- > 0) {
        *(*to)++ = (char)(0x80 | (code >> (6 * more) & 0x3f));
    }
}

/* Read what follows \u. A character outside of the first 65,536 is written as a pair. */
static bool read_unicode(struct json *json, char **to) {
    uint32_t code, low;
    if (!read_hex(json, &code)) {
        return false;
    }
    if (code >= 0xd800 && code < 0xdc00 && strncmp(json->at, "\\u", 2) == 0) {
        json->at += 2;
        if (!read_hex(json, &low)) {
            return false;
        }
        if (low < 0xdc00 || low > 0xdfff) {
            return refuse(json, "a text has half of a character");
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xd800 && code < 0xe000) {
        return refuse(json, "a text has half of a character");
    } else if (code == 0) {
        /* It would end the text for every reader in C. */
        return refuse(json, "a text has a NUL");
    }
    put_character(to, code);
    return true;
}

static bool read_escape(struct json *json, char **to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char name = *++json->at;
    const char *found = name != '\0' ? strchr(names, name) : NULL;
    if (found == NULL && name != 'u') {
        return refuse(json, "a text has an unknown escape");
    }
    json->at++;
    if (name == 'u') {
        return read_unicode(json, to);
    }
    *(*to)++ = values[found - names];
    return true;
}

bool json_text(struct json *json, char **text) {
    if (!take(json, '"')) {
        return refuse(json, "a text is expected");
    }
    /* Every escape is longer than what it stands for, so the writer never overtakes the reader. */
    char *to = *text = json->at;
    while (*json->at != '"') {
        if ((unsigned char)*json->at < ' ') {
            return refuse(json, "a text has a control character, or no end");
        }
        if (*json->at != '\\') {
            *to++ = *json->at++;
        } else if (!read_escape(json, &to)) {
            return false;
        }
    }
    json->at++;
    *to = '\0';
    return true;
}

static bool enter(struct json *json) {
    return json->depth++ < MOST_DEPTH || refuse(json, "it is nested too deep");
}

/* Read the items of an object or array up to its `end`; `fault` is for a missing end. */
static bool read_items(struct json *json, char end, bool (*item)(struct json *, void *),
                       void *context, const char *fault) {
    if (!enter(json)) {
        return false;
    }
    if (!take(json, end)) {
        do {
            if (!item(json, context)) {
                return false;
            }
        } while (take(json, ','));
        if (!take(json, end)) {
            return refuse(json, fault);
        }
    }
    json->depth--;
    return true;
}

struct member_reader {
    json_member read;
    void *context;
};

static bool read_member(struct json *json, void *context) {
    const struct member_reader *reader = context;
    char *name;
    if (!json_text(json, &name)) {
        return false;
    }
    if (!take(json, ':')) {
        return refuse(json, "a colon is expected");
    }
    return reader->read(json, name, reader->context);
}

bool json_object(struct json *json, json_member member, void *context) {
    if (!take(json, '{')) {
        return refuse(json, "an object is expected");
    }
    struct member_reader reader = {.read = member, .context = context};
    return read_items(json, '}', read_member, &reader, "an object has no end");
}

static bool skip_item(struct json *json, void *context) {
    (void)context;
    return json_skip(json);
}

static bool skip_array(struct json *json) {
    json->at++;
    return read_items(json, ']', skip_item, NULL, "an array has no end");
}

static bool skip_digits(struct json *json) {
    size_t count = strspn(json->at, "0123456789");
    json->at += count;
    return count > 0 || refuse(json, "a number is not one");
}

static bool skip_number(struct json *json) {
    json->at += *json->at == '-';
    /* 01 is no number: behind a leading zero, only a point or an exponent may follow. */
    bool is_zero = *json->at == '0';
    if (is_zero) {
        json->at++;
    } else if (!skip_digits(json)) {
        return false;
    }
    if (*json->at == '.') {
        json->at++;
        if (!skip_digits(json)) {
            return false;
        }
    }
    if (*json->at == 'e' || *json->at == 'E') {
        json->at++;
        json->at += *json->at == '-' || *json->at == '+';
        return skip_digits(json);
    }
    return true;
}

static bool skip_member(struct json *json, char *name, void *context) {
    (void)name;
    (void)context;
    return json_skip(json);
}

bool json_skip(struct json *json) {
    static const char *const words[] = {"true", "false", "null"};
    skip_space(json);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strncmp(json->at, words[i], strlen(words[i])) == 0) {
            json->at += strlen(words[i]);
            return true;
        }
    }
    char *ignored;
    switch (*json->at) {
    case '"':
        return json_text(json, &ignored);
    case '{':
        return json_object(json, skip_member, NULL);
    case '[':
        return skip_array(json);
    default:
        return skip_number(json);
    }
}
