foreach(test conformance ends allocations callback tcp_setup tcp_env tcp_faults tcp_endings tcp_ring
        tcp_shared_memory)
  gcomm_native_test(transport_${test} SOURCES transport_${test}.cpp transport_harness.cpp LINKS transport
                    TIMEOUT 600)
endforeach()

# Not a test: benchmarks/native/transport_speed.cpp tells what it measures.
add_executable(transport_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/transport_speed.cpp)
target_link_libraries(transport_speed PRIVATE gcomm_flags gcomm_transport)
