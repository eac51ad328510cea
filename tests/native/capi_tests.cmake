gcomm_native_test(capi_boundary SOURCES capi_boundary.cpp LINKS capi)
gcomm_native_test(capi_struct_sizes SOURCES capi_struct_sizes.cpp LINKS capi)
gcomm_native_test(capi_callbacks SOURCES capi_callbacks.cpp LINKS capi)
gcomm_native_test(capi_c99 ALONE SOURCES capi_c99.c LINKS capi)
set_target_properties(capi_c99 PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(capi_c99 PRIVATE -Wpedantic -Wstrict-prototypes -Werror)
gcomm_native_test(capi_gnmr SOURCES capi_gnmr.cpp LINKS capi)
gcomm_native_test(capi_header ALONE SOURCES capi_header.cpp LINKS capi)
target_compile_options(capi_header PRIVATE -Wpedantic -Werror)
set_target_properties(capi_header PROPERTIES CXX_STANDARD 17)

# Not a test: benchmarks/native/gnmr_speed.cpp tells what it measures.
add_executable(gnmr_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/gnmr_speed.cpp)
target_link_libraries(gnmr_speed PRIVATE gcomm_flags gcomm_capi)

# With sanitizers the library would need their runtime in every program that loads it.
if(TARGET gcomm AND NOT GCOMM_SANITIZE)
  add_test(NAME capi_exports
           COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:gcomm> -DNM=${CMAKE_NM}
                   -DHEADERS=${PROJECT_SOURCE_DIR}/native/include/gcomm
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/capi_exports.cmake)
  find_program(GCOMM_PKG_CONFIG NAMES pkg-config pkgconf)
  set(ways package)
  if(GCOMM_PKG_CONFIG)
    list(APPEND ways pkg-config)
  endif()
  foreach(how IN LISTS ways)
    add_test(NAME capi_consumer_${how}
             COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}/tests/consumer
                     -DWORK=${CMAKE_CURRENT_BINARY_DIR}/consumer_${how} -DHOW=${how}
                     -DCMAKE_CTEST_COMMAND=${CMAKE_CTEST_COMMAND} -P ${CMAKE_CURRENT_SOURCE_DIR}/capi_consumer.cmake)
    set_tests_properties(capi_consumer_${how} PROPERTIES TIMEOUT 300)
  endforeach()
  foreach(language c cpp)
    add_executable(example_${language} ${PROJECT_SOURCE_DIR}/examples/all_reduce.${language})
    target_link_libraries(example_${language} PRIVATE gcomm)
    add_test(NAME capi_example_${language}
             COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:example_${language}>
                     -P ${CMAKE_CURRENT_SOURCE_DIR}/capi_example.cmake)
    set_tests_properties(capi_example_${language} PROPERTIES TIMEOUT 120)
  endforeach()
  add_test(NAME capi_mpi
           COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
                   -DSOURCE=${PROJECT_SOURCE_DIR}/examples/mpi_all_reduce.c
                   -DWORK=${CMAKE_CURRENT_BINARY_DIR}/capi_mpi -P ${CMAKE_CURRENT_SOURCE_DIR}/capi_mpi.cmake)
  set_tests_properties(capi_mpi PROPERTIES TIMEOUT 120 SKIP_REGULAR_EXPRESSION "^skipped: ")
endif()

# Not a test: benchmarks/native/call_cost.cpp tells what it measures.
add_executable(call_cost ${PROJECT_SOURCE_DIR}/benchmarks/native/call_cost.cpp)
target_link_libraries(call_cost PRIVATE gcomm_flags gcomm_capi)
