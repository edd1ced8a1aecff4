# Warnings and sanitizers reach targets through one interface target; nothing sets global flags.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

include(GNUInstallDirs)
add_library(sluice_options INTERFACE)
target_compile_features(sluice_options INTERFACE cxx_std_20)
target_include_directories(sluice_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Warnings are ours alone: users of the installed libraries choose their own.
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wnon-virtual-dtor;-Wold-style-cast;-Wno-missing-field-initializers>>"
  # GCC 12 sees overlaps in std::string concatenation that are not there (its bug 105651).
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>>"
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SLUICE_WERROR}>>:-Werror>>")
target_compile_options(sluice_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>>"
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SLUICE_WERROR}>>:-Werror=all-warnings>>")
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# sluice_library(name SOURCES ... USES ...): the library of one folder, also known as sluice::name.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    add_library(sluice_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(sluice_${name} PUBLIC sluice_options ${ARG_USES} PRIVATE ${ARG_PRIVATE})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_options ${ARG_USES})
  endif()
  add_library(sluice::${name} ALIAS sluice_${name})
endfunction()
