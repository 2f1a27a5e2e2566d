/* Opens libraries in the order of the arguments; with CANARY_CALL, calls which_image of the last
 * one. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    void *last = NULL;
    for (int i = 1; i < argc; i++) {
        last = dlopen(argv[i], RTLD_LAZY | RTLD_GLOBAL);
        if (!last) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        printf("opened\n");
    }
    if (getenv("CANARY_CALL")) {
        int (*which_image)(void) = (int (*)(void))dlsym(last, "which_image");
        printf("image %d\n", which_image ? which_image() : 0);
    }
    return 0;
}
