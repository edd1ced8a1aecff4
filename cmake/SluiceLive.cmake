# The engine of live pages: with SLUICE_LIVE=ON, Emscripten compiles model and sim to WebAssembly (tools/live), which the
# command carries. Off by default, because it compiles these folders a second time.
option(SLUICE_LIVE "Build the engine of live pages (needs Emscripten)" OFF)
set(SLUICE_LIVE_WASM "")
if(NOT SLUICE_LIVE)
  sluice_note("live pages" "off (SLUICE_LIVE=OFF)")
  return()
endif()
find_program(SLUICE_EMXX em++)
if(NOT SLUICE_EMXX)
  message(FATAL_ERROR "  SLUICE_LIVE=ON needs Emscripten, whose em++ was not found. Debian and Ubuntu: emscripten.")
endif()
get_filename_component(emscripten ${SLUICE_EMXX} REALPATH)
get_filename_component(emscripten ${emscripten} DIRECTORY)
find_file(SLUICE_EMSCRIPTEN_TOOLCHAIN Emscripten.cmake
  PATHS ${emscripten}/cmake/Modules/Platform /usr/share/emscripten/cmake/Modules/Platform NO_DEFAULT_PATH REQUIRED)
set(headers "")
foreach(header boost/version.hpp nlohmann/json.hpp fmt/format.h eigen3/Eigen/Core)
  find_path(folder ${header} REQUIRED NO_CACHE)
  string(REGEX REPLACE "/.*" "" name ${header})
  list(APPEND headers ${folder}/${name})
  unset(folder)
endforeach()
list(JOIN headers "|" headers)
include(ExternalProject)
set(live_folder ${PROJECT_BINARY_DIR}/live)
set(SLUICE_LIVE_WASM ${live_folder}/sluice_live.wasm)
ExternalProject_Add(sluice_live
  SOURCE_DIR ${PROJECT_SOURCE_DIR}/tools/live
  BINARY_DIR ${live_folder}
  PREFIX ${live_folder}/external
  CMAKE_GENERATOR Ninja
  LIST_SEPARATOR |
  CMAKE_ARGS -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE=${SLUICE_EMSCRIPTEN_TOOLCHAIN}
    "-DSLUICE_HEADERS=${headers}" -DSLUICE_CATALOGUE=${PROJECT_BINARY_DIR}/model/catalogue.cc
    -DSLUICE_VERSION=${PROJECT_VERSION} -DCMAKE_CXX_COMPILER_LAUNCHER=${SLUICE_CCACHE}
  BUILD_ALWAYS ON
  BUILD_BYPRODUCTS ${SLUICE_LIVE_WASM}
  INSTALL_COMMAND "")
add_dependencies(sluice_live sluice_catalogue)
sluice_note("live pages" "${SLUICE_EMXX}")
