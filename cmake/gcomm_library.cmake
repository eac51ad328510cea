# libgcomm, the C library: everything behind gcomm.h in one shared object that exports gcomm_* and nothing else, and
# what an outside project needs to find it (CMake package, pkg-config).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(map ${PROJECT_SOURCE_DIR}/native/capi/gcomm.map)
add_library(gcomm SHARED $<TARGET_OBJECTS:gcomm_capi>)
add_library(gcomm::gcomm ALIAS gcomm)
target_link_libraries(gcomm PRIVATE gcomm_flags gcomm_comm gcomm_gnmr gcomm_mapl)
target_link_options(gcomm PRIVATE -Wl,--version-script=${map} -Wl,--no-undefined)
set_target_properties(gcomm PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                       LINK_DEPENDS ${map} LINKER_LANGUAGE CXX)
target_include_directories(gcomm INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/native/include>
                                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

install(TARGETS gcomm EXPORT gcommTargets COMPONENT library LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/native/include/gcomm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT library FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gcomm)
install(EXPORT gcommTargets NAMESPACE gcomm:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gcommConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/gcommConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gcommConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gcommConfig.cmake ${PROJECT_BINARY_DIR}/gcommConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT library)

file(RELATIVE_PATH gcomm_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/gcomm.pc.in ${PROJECT_BINARY_DIR}/gcomm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gcomm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
