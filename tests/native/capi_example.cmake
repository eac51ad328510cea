# Runs PROGRAM as two ranks: both must succeed, and rank 0 must say what it did.
string(RANDOM LENGTH 4 ALPHABET 0123456789 digits)
math(EXPR port "20000 + 1${digits} % 10000")
set(launch ${CMAKE_COMMAND} -E env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=${port} GCOMM_TIMEOUT=60)
# The commands of a pipeline run side by side.
execute_process(COMMAND ${launch} RANK=1 ${PROGRAM} COMMAND ${launch} RANK=0 ${PROGRAM}
                RESULTS_VARIABLE codes OUTPUT_VARIABLE said ERROR_VARIABLE faults)
message("${said}${faults}")
if(NOT codes STREQUAL "0;0" OR NOT said MATCHES "^2 ranks: 0\\.[0-9]+ of the uncompressed bytes")
  message(FATAL_ERROR "exit codes ${codes}")
endif()
