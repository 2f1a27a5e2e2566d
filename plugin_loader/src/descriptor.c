#include "descriptor.h"

#include <elf.h>
#include <string.h>

#include "untrusted.h"

_Static_assert(sizeof(archsplit_descriptor) == 112, "the layout of contract 1.0");
_Static_assert(sizeof(archsplit_target) == 8, "the layout of contract 1.0");

archsplit_verdict descriptor_check_text(const uint8_t *bytes, const char *what, uint32_t offset,
                                        uint32_t length, uint32_t start, uint32_t end) {
    if (length == 0 || length > ARCHSPLIT_MAX_TEXT) {
        return malformed(what, length, "a length of 1 to 255");
    }
    if (offset < start || !fits(offset, length, end)) {
        return malformed(what, offset, "an offset between the fixed part and the end");
    }
    for (uint32_t i = 0; i < length; i++) {
        if (bytes[offset + i] < 0x20 || bytes[offset + i] == 0x7f) {
            return malformed(what, bytes[offset + i], "no control characters");
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict read_text(const uint8_t *bytes, uint32_t offset, uint32_t length,
                                   const archsplit_descriptor *fixed, const char *what,
                                   char *text) {
    archsplit_verdict verdict =
        descriptor_check_text(bytes, what, offset, length, fixed->fixed_size, fixed->total_size);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        memcpy(text, bytes + offset, length);
        text[length] = '\0';
    }
    return verdict;
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

/* Second part: find the note in an ELF file. */

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64 };
#else
#error "CUDA plugins exist for x86-64 and aarch64"
#endif

/* More than any linker writes; they bound the walk through a hostile file. */
enum { MAX_SEGMENTS = 256, MAX_ELF_NOTES = 1024 };

static archsplit_verdict truncated(const struct os_file *file, const char *what, uint64_t offset,
                                   uint64_t length) {
    error_set("is truncated: it has %" PRIu64 " bytes, its %s takes %" PRIu64 " from %" PRIu64
              " on" REINSTALL,
              file->size, what, length, offset);
    return ARCHSPLIT_TRUNCATED;
}

static archsplit_verdict check_header(const struct os_file *file, const Elf64_Ehdr *header) {
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
        header->e_type != ET_DYN) {
        error_set("is an ELF file of class %u, byte order %u and type %u, expected a 64-bit (%u) "
                  "little-endian (%u) shared object (%u)",
                  header->e_ident[EI_CLASS], header->e_ident[EI_DATA], header->e_type, ELFCLASS64,
                  ELFDATA2LSB, ET_DYN);
        return ARCHSPLIT_NOT_ELF;
    }
    if (header->e_machine != MACHINE) {
        error_set("is built for another processor: its ELF machine is %u, expected %u (%s); "
                  "install the plugin's wheel for this platform",
                  header->e_machine, MACHINE, MACHINE == EM_X86_64 ? "x86-64" : "aarch64");
        return ARCHSPLIT_WRONG_MACHINE;
    }
    if (header->e_phentsize != sizeof(Elf64_Phdr)) {
        return malformed("the size of a program header", header->e_phentsize, "56");
    }
    if (header->e_phnum == 0 || header->e_phnum > MAX_SEGMENTS) {
        return malformed("the number of segments", header->e_phnum, "1 to 256");
    }
    uint64_t segments = (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);
    if (!fits(header->e_phoff, segments, file->size)) {
        return truncated(file, "table of segments", header->e_phoff, segments);
    }
    /* The section headers aren't needed, but linkers write them last: they are what a cut file
     * lacks first. */
    uint64_t sections = (uint64_t)header->e_shnum * header->e_shentsize;
    if (header->e_shoff != 0 && !fits(header->e_shoff, sections, file->size)) {
        return truncated(file, "table of sections", header->e_shoff, sections);
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict read_header(const struct os_file *file, Elf64_Ehdr *header) {
    memset(header, 0, sizeof *header);
    size_t length = file->size < sizeof *header ? (size_t)file->size : sizeof *header;
    int error = os_read(file, 0, header, length);
    if (error != 0) {
        return read_failed(error, "ELF header");
    }
    size_t magic = length < SELFMAG ? length : SELFMAG;
    if (memcmp(header->e_ident, ELFMAG, magic) != 0) {
        error_set("is not an ELF file: it starts with %02x %02x %02x %02x, expected 7f 45 4c 46",
                  header->e_ident[0], header->e_ident[1], header->e_ident[2], header->e_ident[3]);
        return ARCHSPLIT_NOT_ELF;
    }
    return length == sizeof *header ? check_header(file, header)
                                    : truncated(file, "ELF header", 0, sizeof(Elf64_Ehdr));
}

static bool is_archsplit_note(const Elf64_Nhdr *note, const char *name) {
    return note->n_type == ARCHSPLIT_NOTE_TYPE && note->n_namesz == sizeof ARCHSPLIT_NOTE_NAME &&
           memcmp(name, ARCHSPLIT_NOTE_NAME, sizeof ARCHSPLIT_NOTE_NAME) == 0;
}

/* The place of the archsplit note's descriptor; `length` is 0 until it was found. */
struct place {
    uint64_t offset;
    uint32_t length;
};

static archsplit_verdict add_place(struct place *place, uint64_t offset, uint32_t length) {
    if (place->length != 0) {
        return malformed("the number of archsplit notes", 2, "1");
    }
    if (length < sizeof(archsplit_descriptor) || length > ARCHSPLIT_MAX_DESCRIPTOR) {
        return malformed("the size of the archsplit note", length, "112 to 8192");
    }
    *place = (struct place){offset, length};
    return ARCHSPLIT_ACCEPTED;
}

/* The notes of one segment; that it lies in the file was checked. */
static archsplit_verdict walk_notes(const struct os_file *file, const Elf64_Phdr *segment,
                                    struct place *place) {
    uint64_t alignment = segment->p_align == 8 ? 8 : 4;
    uint64_t end = segment->p_offset + segment->p_filesz, offset = segment->p_offset;
    for (int count = 0; fits(offset, sizeof(Elf64_Nhdr), end); count++) {
        if (count == MAX_ELF_NOTES) {
            return malformed("the number of notes", MAX_ELF_NOTES, "fewer");
        }
        Elf64_Nhdr note;
        char name[12] = {0};
        size_t rest =
            end - offset - sizeof note < sizeof name ? end - offset - sizeof note : sizeof name;
        int error = os_read(file, offset, &note, sizeof note);
        if (error == 0) {
            error = os_read(file, offset + sizeof note, name, rest);
        }
        if (error != 0) {
            return read_failed(error, "segment of notes");
        }
        uint64_t content = offset + aligned(sizeof note + note.n_namesz, alignment);
        if (!fits(content, note.n_descsz, end)) {
            return malformed("a note's size", note.n_descsz, "one that fits its segment");
        }
        if (is_archsplit_note(&note, name)) {
            archsplit_verdict verdict = add_place(place, content, note.n_descsz);
            if (verdict != ARCHSPLIT_ACCEPTED) {
                return verdict;
            }
        }
        offset = content + aligned(note.n_descsz, alignment);
    }
    return ARCHSPLIT_ACCEPTED;
}

/* glibc maps whatever a PT_LOAD says; where the file ends earlier, dlopen dies with SIGBUS. */
static archsplit_verdict check_segment(const struct os_file *file, const Elf64_Phdr *segment,
                                       struct place *place) {
    if (!fits(segment->p_offset, segment->p_filesz, file->size)) {
        return truncated(file, "segment", segment->p_offset, segment->p_filesz);
    }
    if (segment->p_type == PT_LOAD && segment->p_filesz > segment->p_memsz) {
        return malformed("a segment's size in the file", segment->p_filesz, "at most as in memory");
    }
    return segment->p_type == PT_NOTE ? walk_notes(file, segment, place) : ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict find_note(const struct os_file *file, struct place *place) {
    Elf64_Ehdr header;
    archsplit_verdict verdict = read_header(file, &header);
    for (uint64_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        int error = os_read(file, header.e_phoff + i * sizeof segment, &segment, sizeof segment);
        verdict = error == 0 ? check_segment(file, &segment, place)
                             : read_failed(error, "table of segments");
    }
    return verdict;
}

archsplit_verdict descriptor_read(const struct os_file *file, struct descriptor *descriptor) {
    uint8_t bytes[ARCHSPLIT_MAX_DESCRIPTOR];
    struct place place = {0, 0};
    archsplit_verdict verdict = find_note(file, &place);
    if (verdict != ARCHSPLIT_ACCEPTED) {
        return verdict;
    }
    if (place.length == 0) {
        error_set(
            "has no archsplit note, so it is not a plugin; take it out of the plugins' folder");
        return ARCHSPLIT_NO_DESCRIPTOR;
    }
    int error = os_read(file, place.offset, bytes, place.length);
    return error == 0 ? descriptor_decode(bytes, place.length, ARCHSPLIT_SHAPE_LIBRARY, descriptor)
                      : read_failed(error, "archsplit note");
}
