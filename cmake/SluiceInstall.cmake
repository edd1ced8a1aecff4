# Install rules and the Debian package. Included last, because it reads the properties of all targets.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries options model sim traces)
set(share ${CMAKE_INSTALL_DATADIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

# The manual page and the completion scripts: the command prints them.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${generated})
find_program(SLUICE_GZIP gzip)
set(page ${generated}/sluice.1)
add_custom_command(OUTPUT ${page} COMMAND sluice --help-man > ${page} DEPENDS sluice VERBATIM)
if(SLUICE_GZIP)
  add_custom_command(OUTPUT ${page}.gz COMMAND ${SLUICE_GZIP} -9nkf ${page} DEPENDS ${page} VERBATIM)
  set(page ${page}.gz)
endif()
set(scripts "")
set(script_folders "")
foreach(row "bash|bash-completion/completions|sluice" "zsh|zsh/site-functions|_sluice" "fish|fish/vendor_completions.d|sluice.fish")
  string(REPLACE "|" ";" row "${row}")
  list(GET row 0 shell)
  list(GET row 1 folder)
  list(GET row 2 name)
  set(script ${generated}/${shell}/${name})
  file(MAKE_DIRECTORY ${generated}/${shell})
  add_custom_command(OUTPUT ${script} COMMAND sluice completion ${shell} > ${script} DEPENDS sluice VERBATIM)
  list(APPEND scripts ${script})
  list(APPEND script_folders ${share}/${folder})
endforeach()

# Everything that `cmake --install` and `cpack` copy; tools/quickstart.sh builds this target.
list(TRANSFORM libraries PREPEND sluice_ OUTPUT_VARIABLE library_targets)
add_custom_target(sluice_install ALL DEPENDS ${page} ${scripts})
add_dependencies(sluice_install sluice ${library_targets})
# CMake breaks lines of a message that are not indented, also within a command.
install(CODE "
  foreach(file IN ITEMS \"$<TARGET_FILE:sluice>\" \"${page}\")
    if(NOT EXISTS \"\${file}\")
      message(FATAL_ERROR \"  \${file} is not built. Build it first:\n  cmake --build ${CMAKE_BINARY_DIR} --target sluice_install\")
    endif()
  endforeach()" ALL_COMPONENTS)

# Two components: the command with what its users read, and the libraries with their headers.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME command)
install(TARGETS sluice RUNTIME)
install(PROGRAMS tools/sluice-args DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
foreach(script folder IN ZIP_LISTS scripts script_folders)
  install(FILES ${script} DESTINATION ${folder})
endforeach()
install(DIRECTORY examples DESTINATION ${share}/sluice)
install(DIRECTORY docs/ DESTINATION ${share}/doc/sluice)
install(FILES README.md DESTINATION ${share}/doc/sluice)
install(FILES LICENSE DESTINATION ${share}/doc/sluice RENAME copyright)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

# The libraries with public headers, and these headers, included as "sluice/sim/simulator.h".
foreach(name IN LISTS libraries)
  install(TARGETS sluice_${name} EXPORT sluiceTargets ARCHIVE)
  set_target_properties(sluice_${name} PROPERTIES EXPORT_NAME ${name})
endforeach()
install(CODE "
  set(FOLDERS model sim traces)
  set(SOURCE \"${PROJECT_SOURCE_DIR}\")
  set(WORK_FOLDER \"${CMAKE_CURRENT_BINARY_DIR}\")
  set(INCLUDE_FOLDER \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake\")" COMPONENT development)

# The packages that the libraries link, which a consumer has to find again.
set(linked "")
set(static_libraries "")
foreach(name IN LISTS libraries)
  get_target_property(type sluice_${name} TYPE)
  get_target_property(uses sluice_${name} INTERFACE_LINK_LIBRARIES)
  list(APPEND linked ${uses})
  if(type STREQUAL "STATIC_LIBRARY")
    list(PREPEND static_libraries -lsluice_${name})  # a library before those that it uses
  endif()
endforeach()
set(dependencies "")
set(pc_requires "")
set(pc_libraries "")
# prefix of the linked target | arguments of find_dependency | pkg-config module or linker flag
foreach(row "Boost::|Boost 1.74|" "Eigen3::|Eigen3 3.4 NO_MODULE|eigen3" "fmt::|fmt 9.1|fmt"
            "nlohmann_json::|nlohmann_json 3.11|nlohmann_json" "ZLIB::|ZLIB|zlib" "Threads::|Threads|-pthread"
            "TBB::|TBB|-ltbb")
  string(REPLACE "|" ";" row "${row}")
  list(GET row 0 prefix)
  list(GET row 1 package)
  list(GET row 2 module)
  if(NOT linked MATCHES "${prefix}")
    continue()
  endif()
  if(package)
    string(APPEND dependencies "find_dependency(${package})\n")
  endif()
  if(module MATCHES "^-")
    string(APPEND pc_libraries " ${module}")
  elseif(module)
    list(APPEND pc_requires ${module})
  endif()
endforeach()
list(JOIN pc_requires ", " pc_requires)
list(JOIN static_libraries " " static_libraries)

configure_package_config_file(cmake/sluiceConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/sluiceConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sluiceConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/sluiceConfigVersion.cmake
  DESTINATION ${package_dir})
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${package_dir})

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
configure_file(cmake/sluice.pc.in ${CMAKE_CURRENT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# `cpack --config build/<preset>/CPackConfig.cmake`
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Sluice developers")
set(CPACK_PACKAGE_CONTACT "Sluice developers <sluice@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "predicts what pipeline-parallel training costs")
set(CPACK_PACKAGE_DESCRIPTION "Sluice predicts time, bubbles and memory of a pipeline-parallel training
iteration of a large language model, for many schedules, on real models and
clusters. It draws the timeline in the terminal and writes traces for Perfetto.
The package holds the command, static libraries with their headers, and
examples.")
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(SLUICE_OPENBLAS_LIBRARY)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0")  # loaded at the first GEMM, so that no program is linked to it
endif()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Packages that programs need to link the libraries. The command needs none of them.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS
  "g++, libboost-graph-dev, libeigen3-dev, libfmt-dev, libtbb-dev, nlohmann-json3-dev, zlib1g-dev")
include(CPack)
