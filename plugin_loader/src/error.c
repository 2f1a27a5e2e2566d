#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

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
