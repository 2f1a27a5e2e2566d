#include "trace.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "os.h"

struct sink {
    archsplit_trace_callback callback;
    void *context;
    struct sink *replaced; /* another thread may still be in its callback, so it stays */
};

static _Atomic(struct sink *) sinks;

archsplit_status archsplit_trace(archsplit_trace_callback callback, void *context) {
    struct sink *sink = malloc(sizeof *sink);
    if (sink == NULL) {
        return error_no_memory();
    }
    *sink = (struct sink){callback, context, atomic_load(&sinks)};
    while (!atomic_compare_exchange_weak(&sinks, &sink->replaced, sink)) {
    }
    return ARCHSPLIT_OK;
}

void trace(const char *format, ...) {
    const char *setting = os_environment("ARCHSPLIT_TRACE");
    const struct sink *sink = atomic_load(&sinks);
    bool is_set = setting != NULL && strcmp(setting, "1") == 0;
    bool is_called = sink != NULL && sink->callback != NULL;
    if (!is_set && !is_called) {
        return;
    }
    char text[1024], line[sizeof text + 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_escape(text, sizeof text);
    if (is_called) {
        sink->callback(text, sink->context);
    }
    if (is_set) {
        snprintf(line, sizeof line, "archsplit-trace: %s\n", text);
        os_write_error(line);
    }
}
