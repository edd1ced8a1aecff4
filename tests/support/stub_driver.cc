// A CUDA driver without devices that accepts every kernel, so that cuDNN builds plans for devices that are not there.
// libcudnn_engines_runtime_compiled.so links libcuda.so.1, looks up these functions, and loads what it compiled.

#include <cstdlib>

namespace {

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

template <class T>
int give(T** out) {
  static int something;
  *out = reinterpret_cast<T*>(&something);
  return 0;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuLibraryLoadData(void** library, ...) { return give(library); }
int cuLibraryGetKernel(void** kernel, ...) { return give(kernel); }
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuModuleLoadData(void** module, ...) { return give(module); }
int cuModuleGetFunction(void** function, ...) { return give(function); }
int cuModuleUnload(void*) { return 0; }

#define SLUICE_NO_DEVICE(name) \
  int name() { return kNoDevice; }
SLUICE_NO_DEVICE(cuInit)
SLUICE_NO_DEVICE(cuCtxGetCurrent)
SLUICE_NO_DEVICE(cuCtxGetLimit)
SLUICE_NO_DEVICE(cuCtxPopCurrent)
SLUICE_NO_DEVICE(cuCtxPushCurrent)
SLUICE_NO_DEVICE(cuDeviceGet)
SLUICE_NO_DEVICE(cuDeviceGetCount)
SLUICE_NO_DEVICE(cuGetErrorName)
SLUICE_NO_DEVICE(cuGetErrorString)
SLUICE_NO_DEVICE(cuKernelGetAttribute)
SLUICE_NO_DEVICE(cuKernelGetFunction)
SLUICE_NO_DEVICE(cuLaunchCooperativeKernel)
SLUICE_NO_DEVICE(cuLaunchKernel)
SLUICE_NO_DEVICE(cuLaunchKernelEx)
SLUICE_NO_DEVICE(cuLibraryLoadFromFile)
SLUICE_NO_DEVICE(cuLinkAddData)
SLUICE_NO_DEVICE(cuLinkComplete)
SLUICE_NO_DEVICE(cuLinkCreate)
SLUICE_NO_DEVICE(cuLinkDestroy)
SLUICE_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
SLUICE_NO_DEVICE(cuStreamGetCtx)
SLUICE_NO_DEVICE(cuTensorMapEncodeIm2col)
SLUICE_NO_DEVICE(cuTensorMapEncodeTiled)
#undef SLUICE_NO_DEVICE

}  // extern "C"
