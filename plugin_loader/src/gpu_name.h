/* What a GPU can do, by what the driver calls it; pure. */
#ifndef ARCHSPLIT_PRODUCT_H
#define ARCHSPLIT_PRODUCT_H

#include "compat.h"

/* The capability of a GPU ("NVIDIA A100-SXM4-40GB"), if one of the product names of the table in
 * compat.c is in its name. */
bool capability_of_product(const char *model, struct capability *capability);

/* The same where all of the name is understood, so that it can be no other GPU's, and no part of a
 * GPU that a hypervisor lends ("NVIDIA A10-24Q"). */
bool capability_for_certain(const char *model, struct capability *capability);

#endif
