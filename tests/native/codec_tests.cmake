# Not a test: benchmarks/native/codec_speed.cpp tells what it measures.
add_executable(codec_speed ${PROJECT_SOURCE_DIR}/benchmarks/native/codec_speed.cpp)
target_link_libraries(codec_speed PRIVATE gcomm_flags gcomm_codec)
