#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* C0, DEL, and C1 in UTF-8: terminals take U+009B for the beginning of a command too. */
static size_t control_length(const unsigned char *at) {
    if (*at < 0x20 || *at == 0x7f) {
        return 1;
    }
    return *at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0 ? 2 : 0;
}

void text_escape(char *text, size_t size) {
    size_t length = strlen(text);
    for (size_t at = 0; at < length;) {
        size_t control = control_length((const unsigned char *)text + at);
        if (control == 0) {
            at++;
            continue;
        }
        char escaped[5];
        snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)text[at + control - 1]);
        if (length - control + 4 >= size) {
            text[at] = '\0';
            return;
        }
        memmove(text + at + 4, text + at + control, length - at - control + 1);
        memcpy(text + at, escaped, 4);
        length += 4 - control;
        at += 4;
    }
}

static _Thread_local char text[4096];

void error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_escape(text, sizeof text);
}

static void append(const char *format, va_list arguments) {
    size_t used = strlen(text);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    text_escape(text + used, sizeof text - used);
}

void error_append(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
}

void error_append_line(const char *format, ...) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "\n  ");
    va_list arguments;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
}

const char *error_text(void) {
    return text;
}

archsplit_status error_no_memory(void) {
    error_set("out of memory");
    return ARCHSPLIT_NO_MEMORY;
}

archsplit_status error_bad_argument(const char *what) {
    error_set("%s", what);
    return ARCHSPLIT_BAD_ARGUMENT;
}
