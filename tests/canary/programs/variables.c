/* Preloaded into a compiler: appends the name of each variable that it asks for to a file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static char *find(const char *name) {
    size_t length = strlen(name);
    for (char **each = environ; each && *each; each++) {
        if (!strncmp(*each, name, length) && (*each)[length] == '=') {
            return *each + length + 1;
        }
    }
    return NULL;
}

static char *note(const char *name) {
    const char *path = find("CANARY_NAMES");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file >= 0) {
        char line[512] = {0}, program[256] = {0};
        const char *base;
        if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) {
            program[0] = '?';
        }
        base = strrchr(program, '/');
        base = base ? base + 1 : program;
        if (strlen(base) + strlen(name) + 3 < sizeof line) {
            strcpy(line, base);
            strcat(line, " ");
            strcat(line, name);
            strcat(line, "\n");
            if (write(file, line, strlen(line)) < 0) {
                close(file);
            }
        }
        close(file);
    }
    return find(name);
}

char *getenv(const char *name) {
    return note(name);
}
char *secure_getenv(const char *name) {
    return note(name);
}
