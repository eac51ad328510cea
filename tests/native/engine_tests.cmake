add_library(engine_world STATIC engine_world.cpp engine_replay.cpp)
target_include_directories(engine_world PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(engine_world PRIVATE gcomm_flags PUBLIC gcomm_comm)

function(gcomm_engine_test name)
  gcomm_native_test(${name} SOURCES ${name}.cpp LINKS comm ${ARGN})
  target_link_libraries(${name} PRIVATE engine_world)
endfunction()

gcomm_engine_test(engine_all_reduce TIMEOUT 300)
gcomm_engine_test(engine_verbs TIMEOUT 300)
gcomm_engine_test(engine_messages)
gcomm_engine_test(engine_mismatch TIMEOUT 300)
gcomm_engine_test(engine_states TIMEOUT 300)
gcomm_engine_test(engine_faults TIMEOUT 300)
gcomm_engine_test(engine_nonfinite TIMEOUT 300)
gcomm_engine_test(engine_arguments)
gcomm_engine_test(engine_coalesced TIMEOUT 300)
gcomm_engine_test(engine_variable)
gcomm_engine_test(engine_steady TIMEOUT 300)

# Not a test: benchmarks/native/all_reduce_speed.cpp tells what it measures.
add_executable(all_reduce_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/all_reduce_speed.cpp)
target_link_libraries(all_reduce_speed PRIVATE gcomm_flags gcomm_comm)
