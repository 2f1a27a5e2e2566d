#include "object.h"

#include <elf.h>
#include <string.h>

#include "untrusted.h"

enum { WRAPPER_MAGIC = 0x466243b1, WRAPPER_SIZE = 24 };

/* The struct through which a library registers a container with the CUDA runtime; in
 * fatbinary_section.h of the toolkit. */
struct wrapper {
    uint32_t magic;
    uint32_t version;
    uint64_t data;
    uint64_t more;
};

/* Add an address to the load address; only for what is known to be mapped. */
static void *at(const struct os_object *object, uint64_t address) {
    return (void *)(uintptr_t)(object->base + address);
}

/* True if a segment of this type, with these flags at least, covers [address, address + size). */
static bool covers(const struct os_object *object, uint32_t type, uint32_t flags, uint64_t address,
                   uint64_t size) {
    const Elf64_Phdr *headers = object->headers;
    for (uint16_t i = 0; i < object->header_count; i++) {
        const Elf64_Phdr *each = &headers[i];
        if (each->p_type == type && (each->p_flags & flags) == flags && each->p_vaddr <= address &&
            each->p_memsz >= size && address - each->p_vaddr <= each->p_memsz - size) {
            return true;
        }
    }
    return false;
}

static const Elf64_Dyn *dynamic_section(const struct os_object *object) {
    const Elf64_Phdr *headers = object->headers;
    for (uint16_t i = 0; i < object->header_count; i++) {
        if (headers[i].p_type == PT_DYNAMIC) {
            return at(object, headers[i].p_vaddr);
        }
    }
    return NULL;
}

static const char *string_table(const struct os_object *object) {
    for (const Elf64_Dyn *row = dynamic_section(object); row && row->d_tag != DT_NULL; row++) {
        if (row->d_tag == DT_STRTAB) {
            /* glibc puts the real address there, if the dynamic section can be written. */
            uint64_t value = row->d_un.d_ptr;
            return value >= object->base ? (const char *)(uintptr_t)value : at(object, value);
        }
    }
    return NULL;
}

/* True if one of the texts with this tag is `text`. */
static bool has_text(const struct os_object *object, int64_t tag, const char *text) {
    const char *names = string_table(object);
    const Elf64_Dyn *row = names != NULL ? dynamic_section(object) : NULL;
    for (; row != NULL && row->d_tag != DT_NULL; row++) {
        if (row->d_tag == tag && strcmp(names + row->d_un.d_val, text) == 0) {
            return true;
        }
    }
    return false;
}

bool object_needs(const struct os_object *object, const char *name) {
    return has_text(object, DT_NEEDED, name);
}

bool object_is_named(const struct os_object *object, const char *name) {
    return has_text(object, DT_SONAME, name);
}

const char *object_search_path(const struct os_object *object) {
    const char *names = string_table(object), *rpath = NULL;
    const Elf64_Dyn *row = names != NULL ? dynamic_section(object) : NULL;
    for (; row != NULL && row->d_tag != DT_NULL; row++) {
        if (row->d_tag == DT_RUNPATH) {
            return names + row->d_un.d_val;
        }
        rpath = row->d_tag == DT_RPATH ? names + row->d_un.d_val : rpath;
    }
    return rpath;
}

uint64_t *object_pointer(const struct os_object *object, uint64_t wrapper) {
    if (!covers(object, PT_LOAD, PF_R | PF_W, wrapper, WRAPPER_SIZE) ||
        covers(object, PT_GNU_RELRO, 0, wrapper, 1)) {
        return NULL;
    }
    struct wrapper *found = at(object, wrapper);
    return found->magic == WRAPPER_MAGIC ? &found->data : NULL;
}

/* The notes of one segment, which is in memory. */
static const uint8_t *find_note(const uint8_t *segment, const Elf64_Phdr *header, const char *name,
                                uint32_t type, uint32_t *length) {
    uint64_t alignment = header->p_align == 8 ? 8 : 4, size = header->p_memsz, at = 0;
    while (at <= size && size - at >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr note;
        memcpy(&note, segment + at, sizeof note);
        uint64_t content = at + aligned(sizeof note + note.n_namesz, alignment);
        if (content > size || note.n_descsz > size - content) {
            return NULL;
        }
        if (note.n_type == type && note.n_namesz == strlen(name) + 1 &&
            memcmp(segment + at + sizeof note, name, note.n_namesz) == 0) {
            *length = note.n_descsz;
            return segment + content;
        }
        at = content + aligned(note.n_descsz, alignment);
    }
    return NULL;
}

const uint8_t *object_note(const struct os_object *object, const char *name, uint32_t type,
                           uint32_t *length) {
    const Elf64_Phdr *headers = object->headers;
    const uint8_t *found = NULL;
    for (uint16_t i = 0; found == NULL && i < object->header_count; i++) {
        if (headers[i].p_type == PT_NOTE &&
            covers(object, PT_LOAD, PF_R, headers[i].p_vaddr, headers[i].p_memsz)) {
            found = find_note(at(object, headers[i].p_vaddr), &headers[i], name, type, length);
        }
    }
    return found;
}
