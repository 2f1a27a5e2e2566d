#include "note.h"

#include <elf.h>
#include <string.h>

#include "untrusted.h"

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
        return unread(error, "ELF header");
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

static bool is_ours(const Elf64_Nhdr *note, const char *name) {
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

static uint64_t aligned(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
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
            return unread(error, "segment of notes");
        }
        uint64_t content = offset + aligned(sizeof note + note.n_namesz, alignment);
        if (!fits(content, note.n_descsz, end)) {
            return malformed("a note's size", note.n_descsz, "one that fits its segment");
        }
        if (is_ours(&note, name)) {
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
        verdict =
            error == 0 ? check_segment(file, &segment, place) : unread(error, "table of segments");
    }
    return verdict;
}

archsplit_verdict note_read(const struct os_file *file, struct note *note) {
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
    note->length = place.length;
    int error = os_read(file, place.offset, note->bytes, place.length);
    return error == 0 ? ARCHSPLIT_ACCEPTED : unread(error, "archsplit note");
}
