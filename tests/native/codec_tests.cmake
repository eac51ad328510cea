# The AVX-512 driver over emulated intrinsics, so that every x86-64 processor with AVX2 runs it.
set(codec_emulated "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(emulated_flags -mavx2 -mf16c)
  if(GCOMM_SANITIZE)
    # The sanitizers' checks of thousands of emulated intrinsics take the compiler a quarter of an hour; the other
    # drivers run the same loops with them.
    list(APPEND emulated_flags -fno-sanitize=all)
  endif()
  add_library(codec_avx512_emulated OBJECT avx512_emulated.cpp)
  target_compile_options(codec_avx512_emulated PRIVATE ${emulated_flags} -O1 -g0)  # -O2 takes three times as long
  target_link_libraries(codec_avx512_emulated PRIVATE gcomm_codec gcomm_flags)
  set(codec_emulated $<TARGET_OBJECTS:codec_avx512_emulated>)
  find_path(GCOMM_SIMDE_INCLUDE simde/x86/avx512.h)
  if(GCOMM_SIMDE_INCLUDE AND NOT GCOMM_SANITIZE)
    set(with_simde ON)
    add_library(codec_avx512_simde OBJECT avx512_emulated.cpp)
    target_compile_options(codec_avx512_simde PRIVATE ${emulated_flags} -Wno-psabi)
    target_compile_definitions(codec_avx512_simde PRIVATE GCOMM_TEST_SIMDE)
    target_include_directories(codec_avx512_simde SYSTEM PRIVATE ${GCOMM_SIMDE_INCLUDE})
    target_link_libraries(codec_avx512_simde PRIVATE gcomm_codec gcomm_flags)
    list(APPEND codec_emulated $<TARGET_OBJECTS:codec_avx512_simde>)
  endif()
endif()

foreach(name isa elements)
  gcomm_native_test(codec_${name} SOURCES codec_${name}.cpp ${codec_emulated} LINKS codec TIMEOUT 900)
  if(with_simde)
    target_compile_definitions(codec_${name} PRIVATE GCOMM_TEST_HAS_SIMDE)
  endif()
endforeach()
foreach(name bounds stochastic environment spec which_isa)
  gcomm_native_test(codec_${name} SOURCES codec_${name}.cpp LINKS codec TIMEOUT 300)
endforeach()
# The long tier's million cases take more than half an hour under a sanitizer.
gcomm_native_test(codec_fuzz SOURCES codec_fuzz.cpp LINKS codec TIMEOUT 5400)
if(CMAKE_NM AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_test(NAME codec_isa_symbols
           COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:gcomm_codec>"
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/check_isa_symbols.cmake)
endif()

# Not a test: benchmarks/native/codec_speed.cpp tells what it measures.
add_executable(codec_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/codec_speed.cpp)
target_link_libraries(codec_speed PRIVATE gcomm_flags gcomm_codec)
