/* NCCL's functions, as far as LightGBM calls them, found when the first of them is called.
 *
 * Only training on several GPUs calls any. So only those who do that need NCCL, which has 200 MB
 * and more; without it, the library opens all the same. It is looked for as every library is, and
 * then where its own wheel installs it: in site-packages, which the plugin is in, too. */
#include <dlfcn.h>
#include <nccl.h>

#include <string>

namespace {

constexpr char kName[] = "libnccl.so.2";
constexpr char kBeside[] = "/../../../nvidia/nccl/lib/";
constexpr char kMissing[] = "there is no libnccl.so.2; pip install nvidia-nccl-cu13";

void *Open() {
    if (void *library = dlopen(kName, RTLD_NOW | RTLD_LOCAL)) {
        return library;
    }
    Dl_info self;
    if (dladdr(kMissing, &self) == 0) {
        return nullptr;
    }
    const std::string path(self.dli_fname);
    const std::string folder = path.substr(0, path.rfind('/'));
    return dlopen((folder + kBeside + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
}

/* The library stays open for the life of the process. */
template <typename Function> Function *Find(const char *name) {
    static void *const library = Open();
    return library == nullptr ? nullptr : reinterpret_cast<Function *>(dlsym(library, name));
}

} // namespace

#define FORWARD(name, parameters, arguments)                                                       \
    extern "C" ncclResult_t name parameters {                                                      \
        static auto *const found = Find<ncclResult_t parameters>(#name);                           \
        return found == nullptr ? ncclSystemError : found arguments;                               \
    }

FORWARD(ncclGetUniqueId, (ncclUniqueId * id), (id))
FORWARD(ncclCommInitRank, (ncclComm_t * made, int ranks, ncclUniqueId id, int rank),
        (made, ranks, id, rank))
FORWARD(ncclGroupStart, (), ())
FORWARD(ncclGroupEnd, (), ())
FORWARD(ncclAllReduce,
        (const void *sent, void *received, size_t count, ncclDataType_t type, ncclRedOp_t operation,
         ncclComm_t communicator, cudaStream_t stream),
        (sent, received, count, type, operation, communicator, stream))

extern "C" const char *ncclGetErrorString(ncclResult_t result) {
    static auto *const found = Find<const char *(ncclResult_t)>("ncclGetErrorString");
    return found == nullptr ? kMissing : found(result);
}
