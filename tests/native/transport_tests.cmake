foreach(test conformance allocations callback tcp_setup tcp_env tcp_faults)
  gcomm_native_test(transport_${test} SOURCES transport_${test}.cpp transport_harness.cpp LINKS transport
                    TIMEOUT 600)
endforeach()
