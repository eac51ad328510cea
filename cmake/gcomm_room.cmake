# Flags that every room shares, and gcomm_room(): one static target a room, which sees only the rooms it may see.
find_package(Threads REQUIRED)

add_library(gcomm_flags INTERFACE)
# Same bits everywhere: no contraction to fused multiply-adds behind our back, no reassociation.
target_compile_options(gcomm_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                                             -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on "text" + std::string (GCC bug 105651).
  target_compile_options(gcomm_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(GCOMM_WERROR)
  target_compile_options(gcomm_flags INTERFACE -Werror)
endif()
if(GCOMM_SANITIZE STREQUAL "address")
  set(gcomm_sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(GCOMM_SANITIZE STREQUAL "thread")
  set(gcomm_sanitize -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(gcomm_sanitize)
  target_compile_options(gcomm_flags INTERFACE ${gcomm_sanitize})
  target_link_options(gcomm_flags INTERFACE ${gcomm_sanitize})
endif()

# gcomm_room(NAME SOURCES a.cpp b.cpp SEES base codec)
# A room includes its own headers as "name/x.h"; its include path holds only itself and the rooms it sees, so a
# wrong include does not compile.
function(gcomm_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;SEES" ${ARGN})
  add_library(gcomm_${name} STATIC ${ROOM_SOURCES})
  set(view ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/native/${name} ${view}/${name} SYMBOLIC)
  target_include_directories(gcomm_${name} PUBLIC ${view})
  target_link_libraries(gcomm_${name} PRIVATE gcomm_flags PUBLIC Threads::Threads)
  foreach(seen IN LISTS ROOM_SEES)
    target_link_libraries(gcomm_${name} PUBLIC gcomm_${seen})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY GCOMM_ROOMS gcomm_${name})
endfunction()
