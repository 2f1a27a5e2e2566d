/* Texts for terminals: names of files may have any byte in them. */
#ifndef ARCHSPLIT_TEXT_H
#define ARCHSPLIT_TEXT_H

#include <stddef.h>

/* Replace control characters in `text`, which is an array of `size` bytes, by \x1b and the like. A
 * character that has no room any more is cut off, with all that follows. */
void text_escape(char *text, size_t size);

/* Return `folder`/`name`, which the caller frees; NULL without memory. */
char *text_join_path(const char *folder, const char *name);

#endif
