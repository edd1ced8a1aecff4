// A libcudnn.so.9 of version 9.12.0, built for CUDA 99, whose libraries no machine has. It loads, and computes nothing.

#include <cstddef>

extern "C" {

std::size_t cudnnGetVersion() { return 91200; }
std::size_t cudnnGetCudartVersion() { return 99000; }

#define SLUICE_STUB(name) \
  int name() { return 1; }
SLUICE_STUB(cudnnCreate)
SLUICE_STUB(cudnnDestroy)
SLUICE_STUB(cudnnSetStream)
SLUICE_STUB(cudnnGetErrorString)
SLUICE_STUB(cudnnGetLastErrorString)
SLUICE_STUB(cudnnBackendCreateDescriptor)
SLUICE_STUB(cudnnBackendDestroyDescriptor)
SLUICE_STUB(cudnnBackendFinalize)
SLUICE_STUB(cudnnBackendSetAttribute)
SLUICE_STUB(cudnnBackendGetAttribute)
SLUICE_STUB(cudnnBackendExecute)
#undef SLUICE_STUB

}  // extern "C"
