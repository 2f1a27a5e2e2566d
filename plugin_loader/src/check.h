/* True if a plugin's file is one of the core's, and one that is safe to use. */
#ifndef ARCHSPLIT_CHECK_H
#define ARCHSPLIT_CHECK_H

#include "loader.h"

/* A process with more rights than those who can write a plugin must not use it. `levels`: how many
 * of the folders around it have to be safe too; what they are links to always has. */
archsplit_verdict check_safe(const struct candidate *candidate, int levels);

/* Read whose it is from the open file (with all of a device pack but its images), and compare it
 * with the core. */
archsplit_verdict check_plugin(const archsplit_loader *loader, struct candidate *candidate);

/* Compare all bytes of an open plugin with the recorded digests. ARCHSPLIT_ACCEPTED, or a refusal
 * whose reason is the error text, as from both above. */
archsplit_verdict check_content(const archsplit_loader *loader, const struct candidate *candidate,
                                const struct os_file *file);

#endif
