# The AVX-512 search over emulated intrinsics, so that every x86-64 processor runs it.
set(mapl_emulated "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_library(mapl_avx512_emulated OBJECT mapl_avx512_emulated.cpp)
  target_compile_options(mapl_avx512_emulated PRIVATE -mavx2 -mf16c -O1 -g0)
  target_link_libraries(mapl_avx512_emulated PRIVATE gcomm_mapl gcomm_flags)
  set(mapl_emulated $<TARGET_OBJECTS:mapl_avx512_emulated>)
endif()

gcomm_native_test(mapl_search SOURCES mapl_search.cpp ${mapl_emulated} LINKS mapl)
gcomm_native_test(mapl_rvq SOURCES mapl_rvq.cpp LINKS mapl)
if(CMAKE_NM AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_test(NAME mapl_isa_symbols
           COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:gcomm_mapl>"
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/check_isa_symbols.cmake)
endif()

# Not a test: benchmarks/native/rvq_speed.cpp tells what it measures.
add_executable(rvq_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/rvq_speed.cpp)
target_link_libraries(rvq_speed PRIVATE gcomm_flags gcomm_mapl)
