/* The sentence that goes with a return code, one for each thread. */
#ifndef ARCHSPLIT_ERROR_H
#define ARCHSPLIT_ERROR_H

#include <stddef.h>

#include "../include/archsplit/plugin_loader.h"

/* Replace the sentence. What doesn't fit is cut off; control characters are escaped. */
__attribute__((format(printf, 1, 2))) void error_set(const char *format, ...);

/* Add to the sentence, as long as it fits. */
__attribute__((format(printf, 1, 2))) void error_append(const char *format, ...);

/* Add a line to the sentence, indented. */
__attribute__((format(printf, 1, 2))) void error_append_line(const char *format, ...);

const char *error_text(void);

/* Set the text, return the status. */
archsplit_status error_no_memory(void);
archsplit_status error_bad_argument(const char *what);

/* Replace control characters in `text`, which is an array of `size` bytes, by \x1b and the like: it
 * is for terminals, and names of files may have any byte in them. A character that has no room any
 * more is cut off, with all that follows. */
void text_escape(char *text, size_t size);

#endif
