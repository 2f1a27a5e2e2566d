/* A plugin without device code. The tests write their descriptor over the placeholder. */
#include <stdio.h>
#include <stdlib.h>

__asm__(".pushsection .note.archsplit, \"a\", %note\n"
        ".p2align 2\n"
        ".long 10, 512, 1\n"
        ".asciz \"archsplit\"\n"
        ".p2align 2\n"
        ".fill 512, 1, 0xa5\n"
        ".popsection\n");

/* Proof that code of this file has run: a file that the tests look for. */
__attribute__((constructor)) static void leave_mark(void) {
    const char *path = getenv("STUB_MARK");
    FILE *mark = path != NULL ? fopen(path, "a") : NULL;
    if (mark != NULL) {
        fputs("a constructor ran\n", mark);
        fclose(mark);
    }
}

__attribute__((visibility("default"))) int stub_answer(void);

int stub_answer(void) {
    return 42;
}
