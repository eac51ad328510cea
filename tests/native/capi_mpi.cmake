# cmake -DBUILD=build -DSOURCE=examples/mpi_all_reduce.c -DWORK=dir -P: installs the library, builds the example with the
# MPI compiler wrappers of the PATH (MPICH's own interface, and that of MPI 5 where it has one) and runs it.
find_program(MPIEXEC mpiexec)
find_program(MPICC mpicc)
find_program(MPICC_ABI mpicc_abi)
if(NOT MPIEXEC OR NOT MPICC)
  message("skipped: no mpiexec or no mpicc in the PATH")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK} --component library
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE library ${WORK}/libgcomm.so)
cmake_path(GET library PARENT_PATH lib_dir)
foreach(wrapper IN ITEMS ${MPICC} ${MPICC_ABI})
  if(NOT wrapper)
    continue()
  endif()
  execute_process(COMMAND ${wrapper} -std=c99 -Wall -Wextra -Werror ${SOURCE} -I${WORK}/include -L${lib_dir} -lgcomm -lm
                          -Wl,-rpath,${lib_dir} -o ${WORK}/example
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${MPIEXEC} -n 4 ${WORK}/example OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  message("${wrapper}:\n${said}")
  string(REGEX MATCHALL "rank [0-3] of 4 over mpi" ranks "${said}")
  list(LENGTH ranks n)
  if(NOT n EQUAL 4)
    message(FATAL_ERROR "expected 4 ranks over mpi")
  endif()
endforeach()
