/* Verification of all bytes of a plugin. */
#ifndef ARCHSPLIT_VERIFY_H
#define ARCHSPLIT_VERIFY_H

#include "loader.h"

/* Compare an open plugin with the digests on record. ARCHSPLIT_ACCEPTED, or a refusal whose reason
 * is the error text. */
archsplit_verdict verify_file(const archsplit_loader *loader, const struct candidate *candidate,
                              const struct os_file *file);

#endif
