# Warnings and sanitizers are options of one interface target; there are no global flags.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

# Binaries get the same RUNPATH in the build folder and installed: the absolute folders of the libraries that they link
# (an MPI outside the default folders, say). CMake otherwise adds an empty entry to the RUNPATH of what it will install,
# which the loader takes as the current folder.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

include(GNUInstallDirs)
add_library(sluice_options INTERFACE)
target_compile_features(sluice_options INTERFACE cxx_std_20)
target_include_directories(sluice_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Not exported: users of the installed libraries choose their own warnings.
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wnon-virtual-dtor;-Wold-style-cast;-Wno-missing-field-initializers>>"
  # Indices may be signed. GCC has this warning outside -Wconversion.
  "$<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion>>"
  # GCC 12 reports false overlaps in std::string concatenation (GCC bug 105651).
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>>"
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SLUICE_WERROR}>>:-Werror>>")
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--extended-lambda;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>>"
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<BOOL:${SLUICE_WERROR}>>:-Werror=all-warnings>>")
# clang's own CUDA mode, for V100 (tools/v100.sh).
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CUDA,Clang>:-Wno-unknown-cuda-version>>")
# GCC collects its garbage once it has 1 GB, not 128 MB: a tenth of the time of a build.
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1000000>>")
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(SLUICE_SANITIZE MATCHES undefined)
    # What the address sanitizer or the processor reports where it is used; these checks stand at every access to a member
    # and take a sixth of the time of a build.
    target_compile_options(sluice_options INTERFACE -fno-sanitize=null,alignment,vptr,object-size,pointer-overflow)
  endif()
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
else()
  # The static libraries can be linked into shared ones, such as the Python extension. Without semantic interposition GCC
  # inlines exported functions as in a program, as clang does by default.
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  target_compile_options(sluice_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>)
endif()
option(SLUICE_STATIC "Link only the C library as a shared library (tools/bundle.sh)" OFF)
if(SLUICE_STATIC OR SLUICE_PYTHON_PACKAGE)
  # Before the shared {fmt}, which --as-needed then leaves out.
  add_library(sluice_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cc)
  target_link_libraries(sluice_fmt PUBLIC fmt::fmt)
  target_link_libraries(sluice_options INTERFACE $<BUILD_INTERFACE:sluice_fmt>)
  target_link_options(sluice_options INTERFACE $<BUILD_INTERFACE:LINKER:--as-needed>)
endif()
if(SLUICE_STATIC)
  # A program that links a shared C++ library must share the C++ library with it (SLUICE_SHARED_CXX).
  foreach(option -static-libstdc++ -static-libgcc)
    target_link_options(sluice_options INTERFACE
      $<BUILD_INTERFACE:$<$<NOT:$<BOOL:$<TARGET_PROPERTY:SLUICE_SHARED_CXX>>>:${option}>>)
  endforeach()
  set(SLUICE_GLIBC_STUBS "" CACHE PATH "Folder of tools/glibc/stubs.sh: link for its version of the C library, not the system's")
  if(SLUICE_GLIBC_STUBS)
    target_link_options(sluice_options INTERFACE $<BUILD_INTERFACE:-B${SLUICE_GLIBC_STUBS}>)
  endif()
endif()

if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE
    $<$<BOOL:$<TARGET_PROPERTY:SLUICE_COVERAGE>>:-fsanitize=fuzzer-no-link>)
endif()

# Most time of a build goes into headers (nlohmann_json, CLI11, GoogleTest), so several sources share a translation unit.
# Files of one target must not give two things in anonymous namespaces the same name. The batches are those of every
# preset, so that a build of one finds it. Large ones shorten a whole build, and lengthen that after one change.
option(SLUICE_UNITY "Compile several sources in one translation unit" ON)
function(sluice_batch target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SLUICE_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
  if(SLUICE_UNITY)
    # GCC takes a source included by a batch for a header, where a member of an anonymous type would be a mistake.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# The same for code whose speed does not matter (the command line, tests): hardly optimized in Release.
function(sluice_compile_fast target batch)
  sluice_batch(${target} ${batch})
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>)
  # With sanitizers -O0 compiles in half of the time of -O1, or less. The tests that compute much in their own code keep -O1.
  if(SLUICE_SANITIZE AND NOT target MATCHES "^(exec|kernels|sim)_test$")
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# sluice_library(name SOURCES ... USES ...): the library of one folder, also known as sluice::name.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    add_library(sluice_${name} STATIC ${ARG_SOURCES})
    sluice_batch(sluice_${name} 24)
    target_link_libraries(sluice_${name} PUBLIC sluice_options ${ARG_USES} PRIVATE ${ARG_PRIVATE})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_options ${ARG_USES})
  endif()
  add_library(sluice::${name} ALIAS sluice_${name})
endfunction()
