/* Messages on standard error for the users of a split library. They begin with "archsplit: ",
 * not with "error: ", because the program that they appear in is another one. */
#ifndef ARCHSPLIT_DIAGNOSTICS_H
#define ARCHSPLIT_DIAGNOSTICS_H

#include "loader.h"

/* Report why a library is not served. `package` is the import name of its core, NULL where it is
 * not known; `option` follows its doctor's name. */
void report_problem(const char *package, const char *what, const char *option);

/* Report the error text; ARCHSPLIT_STRICT=1 ends the process. */
void report_failure(const char *package);

/* Report the refused plugins, and the GPUs that miss code; ARCHSPLIT_STRICT=1 ends the process. */
void report_state(const archsplit_loader *loader, const char *package);

#endif
