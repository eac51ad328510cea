foreach(name products basis basis_state row_codec row_faults tile_map coordinates choice weighted spectral)
  gcomm_native_test(gift_${name} SOURCES gift_${name}.cpp LINKS gift TIMEOUT 300)
endforeach()
if(CMAKE_NM AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_test(NAME gift_isa_symbols
           COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:gcomm_gift>"
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/check_isa_symbols.cmake)
endif()

# Not a test: benchmarks/native/gift_speed.cpp tells what it measures.
add_executable(gift_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/gift_speed.cpp)
target_link_libraries(gift_speed PRIVATE gcomm_flags gcomm_gift)
