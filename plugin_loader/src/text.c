#include "text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
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

char *text_join_path(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s/%s", folder, name);
    }
    return path;
}
