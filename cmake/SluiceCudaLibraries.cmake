# NVIDIA's libraries are loaded at run time. Configuring looks for them, and for their headers, which tests compare with our
# declarations, in the toolkit, in the system's folders, and in the packages of a Python (nvidia-nccl-cu13, nvidia-cudnn-cu13, nvidia-cublas, ...).
set(SLUICE_PYTHON python3 CACHE STRING
  "Python interpreter whose nvidia-* packages provide the CUDA libraries that the toolkit lacks (empty: none)")

# The folders of the nvidia-* packages on the interpreter's module path (those of its virtual environment, of the user and of the
# system), those for the toolkit's CUDA version first.
set(nvidia_packages "")
if(SLUICE_PYTHON)
  execute_process(
    COMMAND ${SLUICE_PYTHON} -c
      "import glob, sys\nfor p in filter(None, sys.path): print(*glob.glob(glob.escape(p) + '/nvidia/*/'), sep='\\n')"
    OUTPUT_VARIABLE nvidia_packages ERROR_QUIET)
  string(REGEX MATCHALL "[^\r\n]+" nvidia_packages "${nvidia_packages}")
  set(same_version ${nvidia_packages})
  list(FILTER same_version INCLUDE REGEX "/cu${CUDAToolkit_VERSION_MAJOR}/$")
  list(PREPEND nvidia_packages ${same_version})
endif()

# Looks for one library: sets SLUICE_<NAME>_INCLUDE and SLUICE_<NAME>_LIBRARY, reports the version that the macros of its header
# give (<prefix>MAJOR ...), or `missing`, and appends the library's folder to SLUICE_CUDA_LIBRARY_FOLDERS.
function(sluice_find_cuda_library name header prefix missing)
  string(TOUPPER ${name} variable)
  foreach(path SLUICE_${variable}_INCLUDE SLUICE_${variable}_LIBRARY)
    if(DEFINED ${path} AND NOT EXISTS "${${path}}")
      unset(${path} CACHE)  # an environment that was removed since
    endif()
  endforeach()
  find_path(SLUICE_${variable}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${nvidia_packages} PATH_SUFFIXES include)
  # Python packages have no link without a version.
  find_library(SLUICE_${variable}_LIBRARY NAMES ${ARGN}
    HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib64 PATHS ${nvidia_packages} PATH_SUFFIXES lib)
  set(include "${SLUICE_${variable}_INCLUDE}")
  set(library "${SLUICE_${variable}_LIBRARY}")
  if(NOT include OR NOT library)
    sluice_note(${name} "${missing}")
    return()
  endif()
  file(STRINGS ${include}/${header} version REGEX "define ${prefix}(MAJOR|MINOR|PATCH|PATCHLEVEL) ")
  list(TRANSFORM version REPLACE ".* ([0-9]+) *$" "\\1")
  list(JOIN version . version)
  if(library MATCHES "/nvidia/[^/]+/lib/")
    string(APPEND version " (Python package)")
  endif()
  sluice_note(${name} "${version}")
  get_filename_component(folder ${library} DIRECTORY)
  set(SLUICE_CUDA_LIBRARY_FOLDERS ${SLUICE_CUDA_LIBRARY_FOLDERS} ${folder} PARENT_SCOPE)
endfunction()

set(SLUICE_CUDA_LIBRARY_FOLDERS ${CUDAToolkit_LIBRARY_DIR})
sluice_find_cuda_library(cuBLAS cublas_api.h CUBLAS_VER_ "not found: needed at run time by --backend cuda"
  cublas libcublas.so.${CUDAToolkit_VERSION_MAJOR} libcublas.so.13 libcublas.so.12)
sluice_find_cuda_library(cuDNN cudnn_version.h CUDNN_ "not found: optional at run time" cudnn libcudnn.so.9)
sluice_find_cuda_library(NCCL nccl.h NCCL_ "not found: needed at run time for more than one GPU"
  nccl_static nccl libnccl.so.2)
list(REMOVE_DUPLICATES SLUICE_CUDA_LIBRARY_FOLDERS)
list(JOIN SLUICE_CUDA_LIBRARY_FOLDERS ":" SLUICE_CUDA_LIBRARY_FOLDERS)
