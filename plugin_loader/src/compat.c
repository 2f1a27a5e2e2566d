#include "compat.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "gpu_table.h"

static bool is_embedded(uint32_t major, uint32_t minor) {
    const struct gpu_row *row;
    for (size_t i = 0; (row = gpu_table_row(i)) != NULL; i++) {
        if (row->major == major && row->minor == minor) {
            return row->embedded;
        }
    }
    return false;
}

/* SASS moves up within a major capability, but never to or from an embedded part. */
static bool is_binary_compatible(const archsplit_target *target, struct capability capability) {
    return target->major == capability.major && target->minor < capability.minor &&
           !is_embedded(target->major, target->minor) &&
           !is_embedded(capability.major, capability.minor);
}

bool target_runs_on(const archsplit_target *target, struct capability capability) {
    if (target->major == capability.major && target->minor == capability.minor) {
        return true;
    }
    if (target->suffix == 'a') {
        return false;
    }
    if (target->kind == ARCHSPLIT_KIND_PTX && target->suffix == 0) {
        return target->major < capability.major ||
               (target->major == capability.major && target->minor < capability.minor);
    }
    return is_binary_compatible(target, capability);
}

/* Greater is better: SASS before PTX, then the higher capability, then `a`, `f`, none. */
static uint32_t rank(const archsplit_target *target) {
    uint32_t suffix = target->suffix == 'a' ? 2 : target->suffix == 'f' ? 1 : 0;
    uint32_t sass = target->kind == ARCHSPLIT_KIND_SASS ? 1 : 0;
    return sass << 31 | (uint32_t)target->major << 8 | (uint32_t)target->minor << 2 | suffix;
}

bool target_is_better(const archsplit_target *a, const archsplit_target *b) {
    return rank(a) > rank(b);
}

bool target_equals(const archsplit_target *a, const archsplit_target *b) {
    return rank(a) == rank(b);
}

bool target_can_load(const archsplit_target *target, uint32_t toolkit, uint32_t driver) {
    if (driver == 0) {
        return true;
    }
    return target->kind == ARCHSPLIT_KIND_PTX ? driver >= toolkit : driver / 1000 >= toolkit / 1000;
}

struct target_name target_name(const archsplit_target *target) {
    struct target_name name;
    const char *kind = target->kind == ARCHSPLIT_KIND_SASS ? "sm" : "compute";
    const char suffix[2] = {(char)target->suffix, '\0'};
    snprintf(name.text, sizeof name.text, "%s_%u%u%s", kind, target->major, target->minor, suffix);
    return name;
}

/* A part of a model's name. */
struct part {
    const char *begin;
    const char *end;
};

/* Find a name in a text, beginning and ending with words: "A10" is not in "A100". */
static struct part find_words(const char *text, const char *name, size_t length) {
    for (const char *at = text; *at != '\0'; at++) {
        bool begins = at == text || !isalnum((unsigned char)at[-1]);
        if (begins && strncmp(at, name, length) == 0 && !isalnum((unsigned char)at[length])) {
            return (struct part){at, at + length};
        }
    }
    return (struct part){NULL, NULL};
}

/* Find one of a row's models in a model's name. */
static struct part find_product(const char *model, const char *models) {
    struct part found = {NULL, NULL};
    for (const char *at = models; found.begin == NULL && *at != '\0'; at += strspn(at, ", ")) {
        size_t length = strcspn(at, ",");
        found = find_words(model, at, length);
        at += length;
    }
    return found;
}

/* The row of the table that has a model's product, or NULL. */
static const struct gpu_row *find_row(const char *model, struct part *product) {
    const struct gpu_row *row;
    for (size_t i = 0; (row = gpu_table_row(i)) != NULL; i++) {
        *product = find_product(model, row->models);
        if (!row->embedded && product->begin != NULL) {
            return row;
        }
    }
    return NULL;
}

bool capability_by_name(const char *model, struct capability *capability) {
    struct part product;
    const struct gpu_row *row = find_row(model, &product);
    if (row != NULL) {
        *capability = (struct capability){row->major, row->minor};
    }
    return row != NULL;
}

/* Words that stand beside a product without making a GPU of another capability of it: makers,
 * boards, memory, grades of one chip. Source: the names in NVIDIA's list of supported GPUs (README
 * of the open kernel modules, appendix A of the driver's README). */
static const char *const neutral_words[] = {
    "NVIDIA", "Tesla",   "GeForce", "Generation", "PCIe",        "PCIE",   "SXM",
    "SXM2",   "SXM3",    "SXM4",    "SXM5",       "SXM6",        "NVL",    "AC",
    "HBM2",   "HBM2e",   "HBM3",    "HBM3e",      "Ti",          "SUPER",  "Super",
    "D",      "with",    "Max",     "Q",          "Design",      "Laptop", "GPU",
    "Server", "Edition", "FHHL",    "Blackwell",  "Workstation",
};

enum { NEUTRAL_COUNT = sizeof neutral_words / sizeof *neutral_words };

static bool is_memory(const char *word, size_t length) {
    return length > 2 && strspn(word, "0123456789") == length - 2 &&
           strncmp(word + length - 2, "GB", 2) == 0;
}

static bool is_neutral(const char *word, size_t length) {
    bool found = is_memory(word, length);
    for (size_t i = 0; !found && i < NEUTRAL_COUNT; i++) {
        found = strlen(neutral_words[i]) == length && strncmp(word, neutral_words[i], length) == 0;
    }
    return found;
}

static bool all_neutral(struct part part) {
    static const char between[] = " -";
    const char *word = part.begin + strspn(part.begin, between);
    while (word < part.end) {
        size_t length = strcspn(word, between);
        if (!is_neutral(word, length)) {
            return false;
        }
        word += length;
        word += strspn(word, between);
    }
    return true;
}

/* Before Pascal one name stood for several chips: there is a GeForce GTX 750 of 5.0, and one of
 * 5.2. What has no number, as Rubin, is a family and no product. */
static bool is_unique(const struct gpu_row *row, struct part product) {
    size_t digits = strcspn(product.begin, "0123456789");
    return row->major >= 6 && digits < (size_t)(product.end - product.begin);
}

bool capability_by_exact_name(const char *model, struct capability *capability) {
    struct part product;
    const struct gpu_row *row = find_row(model, &product);
    return row != NULL && is_unique(row, product) &&
           all_neutral((struct part){model, product.begin}) &&
           all_neutral((struct part){product.end, model + strlen(model)}) &&
           capability_by_name(model, capability);
}
