/* The module search path of the Python interpreter that this process is, if it is one. */
#ifndef ARCHSPLIT_PYTHON_PATH_H
#define ARCHSPLIT_PYTHON_PATH_H

#include <stdbool.h>

/* Visit the texts of sys.path in their order, until `visit` returns false. Nothing is visited if
 * the process has no Python, or if this thread doesn't hold its lock. */
void python_path_each(bool (*visit)(const char *entry, void *context), void *context);

#endif
