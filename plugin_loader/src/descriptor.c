#include "descriptor.h"

#include <string.h>

#include "note.h"
#include "untrusted.h"

_Static_assert(sizeof(archsplit_descriptor) == 112, "the layout of contract 1.0");
_Static_assert(sizeof(archsplit_target) == 8, "the layout of contract 1.0");

static archsplit_verdict read_text(const uint8_t *bytes, uint32_t offset, uint32_t length,
                                   const archsplit_descriptor *fixed, const char *what,
                                   char *text) {
    if (length == 0 || length > ARCHSPLIT_MAX_TEXT) {
        return malformed(what, length, "a length of 1 to 255");
    }
    if (offset < fixed->fixed_size || !fits(offset, length, fixed->total_size)) {
        return malformed(what, offset, "an offset between the fixed part and the end");
    }
    for (uint32_t i = 0; i < length; i++) {
        if (bytes[offset + i] < 0x20 || bytes[offset + i] == 0x7f) {
            return malformed(what, bytes[offset + i], "no control characters");
        }
    }
    memcpy(text, bytes + offset, length);
    text[length] = '\0';
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict descriptor_check_target(const archsplit_target *target) {
    if (target->kind != ARCHSPLIT_KIND_SASS && target->kind != ARCHSPLIT_KIND_PTX) {
        return malformed("a target's kind", target->kind, "1 (SASS) or 2 (PTX)");
    }
    if (target->major == 0 || target->major > 999) {
        return malformed("a target's major capability", target->major, "1 to 999");
    }
    if (target->minor > 9) {
        return malformed("a target's minor capability", target->minor, "0 to 9");
    }
    if (target->suffix != 0 && target->suffix != 'a' && target->suffix != 'f') {
        return malformed("a target's suffix", target->suffix, "0, 97 (a) or 102 (f)");
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict read_targets(const uint8_t *bytes, const archsplit_descriptor *fixed,
                                      struct descriptor *descriptor) {
    if (fixed->target_size < sizeof(archsplit_target) || fixed->target_size % 4 != 0) {
        return malformed("the size of a target", fixed->target_size, "8 or more, in fours");
    }
    if (fixed->target_count == 0 || fixed->target_count > ARCHSPLIT_MAX_TARGETS) {
        return malformed("the number of targets", fixed->target_count, "1 to 64");
    }
    uint64_t length = (uint64_t)fixed->target_size * fixed->target_count;
    if (fixed->targets_offset < fixed->fixed_size || fixed->targets_offset % 4 != 0 ||
        !fits(fixed->targets_offset, length, fixed->total_size)) {
        return malformed("the target table", fixed->targets_offset,
                         "an offset between the fixed part and the end, in fours");
    }
    descriptor->target_count = fixed->target_count;
    for (uint32_t i = 0; i < descriptor->target_count; i++) {
        archsplit_target *target = &descriptor->targets[i];
        memcpy(target, bytes + fixed->targets_offset + (size_t)i * fixed->target_size,
               sizeof *target);
        archsplit_verdict verdict = descriptor_check_target(target);
        if (verdict != ARCHSPLIT_ACCEPTED) {
            return verdict;
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict check_fixed(const archsplit_descriptor *fixed, uint32_t length,
                                     uint32_t shape) {
    if (fixed->contract_major != ARCHSPLIT_CONTRACT_MAJOR) {
        error_set("follows contract %u.%u of plugins, expected %u; install core and plugin from "
                  "one release",
                  fixed->contract_major, fixed->contract_minor, ARCHSPLIT_CONTRACT_MAJOR);
        return ARCHSPLIT_WRONG_CONTRACT;
    }
    if (fixed->total_size != length) {
        return malformed("the descriptor's total size", fixed->total_size, "the note's size");
    }
    if (fixed->fixed_size < sizeof *fixed || fixed->fixed_size > length) {
        return malformed("the descriptor's fixed size", fixed->fixed_size, "112 to its total size");
    }
    bool is_shape =
        fixed->shape == ARCHSPLIT_SHAPE_LIBRARY || fixed->shape == ARCHSPLIT_SHAPE_DEVICE;
    if (shape == ANY_SHAPE ? !is_shape : fixed->shape != shape) {
        error_set("has shape %u, expected %u (%s); install core and plugin from one release",
                  fixed->shape, shape,
                  shape == ARCHSPLIT_SHAPE_LIBRARY ? "a whole library" : "only device code");
        return ARCHSPLIT_WRONG_SHAPE;
    }
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict descriptor_decode(const uint8_t *bytes, uint32_t length, uint32_t shape,
                                    struct descriptor *descriptor) {
    archsplit_descriptor fixed;
    if (length < sizeof fixed) {
        return malformed("the descriptor's size", length, "112 or more");
    }
    memcpy(&fixed, bytes, sizeof fixed);
    archsplit_verdict verdict = check_fixed(&fixed, length, shape);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = read_text(bytes, fixed.package_offset, fixed.package_length, &fixed,
                            "the package's name", descriptor->package);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = read_text(bytes, fixed.version_offset, fixed.version_length, &fixed,
                            "the version", descriptor->version);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = read_targets(bytes, &fixed, descriptor);
    }
    descriptor->shape = fixed.shape;
    descriptor->cuda_version = fixed.cuda_version;
    memcpy(descriptor->build_id, fixed.build_id, sizeof fixed.build_id);
    memcpy(descriptor->interface_hash, fixed.interface_hash, sizeof fixed.interface_hash);
    return verdict;
}

archsplit_verdict descriptor_read(const struct os_file *file, struct descriptor *descriptor) {
    struct note note;
    archsplit_verdict verdict = note_read(file, &note);
    if (verdict != ARCHSPLIT_ACCEPTED) {
        return verdict;
    }
    return descriptor_decode(note.bytes, note.length, ARCHSPLIT_SHAPE_LIBRARY, descriptor);
}
