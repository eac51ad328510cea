# cmake -DLIBRARY=libgcomm.so -DHEADER=gcomm.h -DNM=nm -P: the library exports what the header declares, and no more.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY} OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "([^ \n]+)[^\n]*\n" "\\1;" exported "${lines}")
list(REMOVE_ITEM exported "")
list(SORT exported)

file(READ ${HEADER} header)
string(REGEX MATCHALL "GCOMM_API [^(;]*gcomm_[a-z0-9_]+\\(" declarations "${header}")
set(declared)
foreach(declaration IN LISTS declarations)
  string(REGEX REPLACE ".*(gcomm_[a-z0-9_]+)\\($" "\\1" name "${declaration}")
  list(APPEND declared ${name})
endforeach()
list(SORT declared)

list(LENGTH declared count)
if(count LESS 40)
  message(FATAL_ERROR "only ${count} functions found in ${HEADER}")
endif()
if(NOT exported STREQUAL declared)
  message(FATAL_ERROR "exported: ${exported}\ndeclared: ${declared}")
endif()
message("${count} functions, nothing else")
