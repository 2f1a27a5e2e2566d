/* The identity of an installed core, as its table has it. */
#ifndef ARCHSPLIT_CORE_FILE_H
#define ARCHSPLIT_CORE_FILE_H

#include "../include/archsplit/plugin_loader.h"

/* See archsplit_core_read and archsplit_core_free. */
archsplit_status core_read(const char *folder, archsplit_core **core);
void core_free(archsplit_core *core);

#endif
