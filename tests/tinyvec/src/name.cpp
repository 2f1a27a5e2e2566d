#include "tinyvec.h"

extern "C" const char *tinyvec_name(void) {
    return TINYVEC_NAME;
}
