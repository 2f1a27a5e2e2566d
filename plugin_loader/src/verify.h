/* Comparison of a whole plugin with the digests on record. */
#ifndef ARCHSPLIT_VERIFY_H
#define ARCHSPLIT_VERIFY_H

#include "loader.h"

archsplit_status verify_candidate(const archsplit_loader *loader, uint32_t index);

#endif
