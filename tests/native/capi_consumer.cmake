# cmake -DBUILD=build -DSOURCE=tests/consumer -DWORK=dir -DHOW=package|pkg-config -P: installs the library and builds and
# runs an outside project against it.
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} --component library
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE pc ${prefix}/*/gcomm.pc)
cmake_path(GET pc PARENT_PATH pc_dir)
if(HOW STREQUAL "pkg-config")
  set(ENV{PKG_CONFIG_PATH} ${pc_dir})
  set(find -DUSE_PKG_CONFIG=ON)
else()
  set(find -DCMAKE_PREFIX_PATH=${prefix})
endif()
cmake_path(GET pc_dir PARENT_PATH lib_dir)
set(ENV{LD_LIBRARY_PATH} ${lib_dir})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build ${find} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${WORK}/build --output-on-failure COMMAND_ERROR_IS_FATAL ANY)
