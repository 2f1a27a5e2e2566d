/* A library that says which of its functions were called with what. */
#include "stand_in_nccl.h"

ncclResult_t ncclGroupStart(void) {
    return (ncclResult_t)41;
}

ncclResult_t ncclGroupEnd(void) {
    return (ncclResult_t)42;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    id->internal[127] = 7;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *made, int ranks, ncclUniqueId id, int rank) {
    *made = NULL;
    return (ncclResult_t)(ranks * 100 + rank * 10 + id.internal[127]);
}

ncclResult_t ncclAllReduce(const void *sent, void *received, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
    const int wrong = operation != ncclSum || communicator != NULL || stream != NULL;
    *(int *)received = *(const int *)sent + (int)count + (int)type;
    return wrong ? ncclSystemError : ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "stand-in";
}
