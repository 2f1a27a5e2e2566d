/* Read a plugin's descriptor from its file. */
#ifndef ARCHSPLIT_DESCRIPTOR_H
#define ARCHSPLIT_DESCRIPTOR_H

#include "../include/archsplit/plugin_loader.h"
#include "os.h"

/* A descriptor whose every field was checked. */
struct descriptor {
    uint32_t shape;
    char package[ARCHSPLIT_MAX_TEXT + 1];
    char version[ARCHSPLIT_MAX_TEXT + 1];
    uint8_t build_id[32];
    uint8_t interface_hash[32];
    uint32_t cuda_version;
    uint32_t target_count;
    archsplit_target targets[ARCHSPLIT_MAX_TARGETS];
};

/* Walk an ELF file to its one archsplit note, never reading outside of the file and never more than
 * a few kilobytes of it, and decode the note. ARCHSPLIT_ACCEPTED, or a refusal whose reason is the
 * error text. */
archsplit_verdict descriptor_read(const struct os_file *file, struct descriptor *descriptor);

/* Decode a descriptor of `length` bytes that begin at `bytes`, of a plugin of this shape. */
enum { ANY_SHAPE = 0 };
archsplit_verdict descriptor_decode(const uint8_t *bytes, uint32_t length, uint32_t shape,
                                    struct descriptor *descriptor);

/* Check a text that has to lie between two offsets, and one target. */
archsplit_verdict descriptor_check_text(const uint8_t *bytes, const char *what, uint32_t offset,
                                        uint32_t length, uint32_t start, uint32_t end);
archsplit_verdict descriptor_check_target(const archsplit_target *target);

#endif
