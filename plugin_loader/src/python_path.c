/* Libraries are loaded by an import or by ctypes, and CPython holds its lock (the GIL) in both: so
 * sys.path can be read here, by functions that the interpreter exports and that run no Python code.
 * The lock is never waited for. A thread that waits for it inside ld.so, and one that has it and
 * waits for ld.so, would wait for each other forever. */
#include "python_path.h"

#include <stddef.h>
#include <string.h>

#include "os.h"

/* The functions of Python's C API that are needed; an object is a `void *`. */
struct python {
    int (*is_locked)(void);
    void *(*this_thread)(void);
    void *(*current_thread)(void);
    void *(*sys_object)(const char *);
    void *(*list_copy)(void *);
    ptrdiff_t (*tuple_size)(void *);
    void *(*tuple_item)(void *, ptrdiff_t);
    void *(*file_name)(void *);
    char *(*bytes_text)(void *);
    void (*release)(void *);
    void (*clear_error)(void);
};

/* dlsym returns an object's address, which C doesn't convert to a function's. */
static bool find(const char *name, void *function) {
    void *address = os_process_symbol(name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool find_python(struct python *python) {
    /* The first name ends if the process has no Python, which is the common case for programs in
     * C++. The second one is the one of Python 3.12 and older. */
    return find("PyGILState_Check", &python->is_locked) &&
           (find("PyThreadState_GetUnchecked", &python->current_thread) ||
            find("_PyThreadState_UncheckedGet", &python->current_thread)) &&
           find("PyGILState_GetThisThreadState", &python->this_thread) &&
           find("PySys_GetObject", &python->sys_object) &&
           find("PyList_AsTuple", &python->list_copy) &&
           find("PyTuple_Size", &python->tuple_size) &&
           find("PyTuple_GetItem", &python->tuple_item) &&
           find("PyUnicode_EncodeFSDefault", &python->file_name) &&
           find("PyBytes_AsString", &python->bytes_text) && find("Py_DecRef", &python->release) &&
           find("PyErr_Clear", &python->clear_error);
}

/* PyGILState_Check is not enough: where subinterpreters were made, it is always true. */
static bool is_locked(const struct python *python) {
    void *this = python->this_thread();
    return this != NULL && python->current_thread() == this && python->is_locked() == 1;
}

/* Pass one entry on; what is not a text is passed over, as an import does. */
static bool visit_entry(const struct python *python, void *entry,
                        bool (*visit)(const char *entry, void *context), void *context) {
    void *name = python->file_name(entry);
    const char *text = name != NULL ? python->bytes_text(name) : NULL;
    bool more = true;
    if (text == NULL) {
        python->clear_error();
    } else {
        more = visit(text, context);
    }
    if (name != NULL) {
        python->release(name);
    }
    return more;
}

void python_path_each(bool (*visit)(const char *entry, void *context), void *context) {
    struct python python;
    if (!find_python(&python) || !is_locked(&python)) {
        return;
    }
    /* A copy stays as it is, where threads run without a common lock. */
    void *path = python.sys_object("path");
    void *entries = path != NULL ? python.list_copy(path) : NULL;
    if (entries == NULL) {
        python.clear_error(); /* sys.path was replaced by another object, or Python is ending */
        return;
    }
    bool more = true;
    for (ptrdiff_t i = 0; more && i < python.tuple_size(entries); i++) {
        more = visit_entry(&python, python.tuple_item(entries, i), visit, context);
    }
    python.release(entries);
}
