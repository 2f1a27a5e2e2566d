/* The decisions of the loader, one line each, for the trace callback and ARCHSPLIT_TRACE. */
#ifndef ARCHSPLIT_TRACE_H
#define ARCHSPLIT_TRACE_H

#include "../include/archsplit/plugin_loader.h"

/* Pass a line to the callback, and to standard error where ARCHSPLIT_TRACE=1. */
__attribute__((format(printf, 1, 2))) void trace(const char *format, ...);

#endif
