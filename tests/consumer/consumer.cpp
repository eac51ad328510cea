// The same library through gcomm.hpp.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gcomm/gcomm.hpp>
#include <utility>
#include <vector>

namespace {

void must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "consumer.cpp: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  constexpr std::size_t kCount = 50000;
  const std::vector<gcomm::Communicator> ranks = gcomm::Communicator::local(3);
  std::vector<std::vector<float>> data(3, std::vector<float>(kCount, 2.0f)),
      gathered(3, std::vector<float>(3 * kCount));
  std::vector<gcomm::Work> works;
  for (std::size_t r = 0; r < 3; ++r) {
    works.push_back(ranks[r].all_reduce(data[r].data(), kCount, ranks[r].codec("nvfp4"), GCOMM_AVG));
    works.push_back(ranks[r].all_gather(data[r].data(), gathered[r].data(), kCount));
    works.push_back(ranks[r].barrier());
  }
  for (const gcomm::Work& work : works) work.wait();
  must(works[0].stats().wire_bytes * 4 < works[0].stats().raw_bytes, "nvfp4 sends few bytes");
  for (const auto& result : data) must(result == data[0], "the same bits on all ranks");
  for (const float value : data[0]) must(std::fabs(value - 2.0f) <= 0.25f, "the average is near");
  must(gathered[0] == gathered[2] && gathered[0][kCount] == data[1][0], "what was gathered");

  gcomm::Work alone = ranks[0].broadcast(data[0].data(), kCount, 1);
  must(!alone.wait_for(0.01), "nobody else has called yet");
  ranks[1].abort("the test is over");
  try {
    alone.wait();
    must(false, "an aborted call threw nothing");
  } catch (const gcomm::Error& error) {
    must(error.code() == GCOMM_ERR_ABORTED && error.rank() == 1, error.what());
  }

  const gcomm::Codec codec("int4:ef=1");
  const std::vector<float> values(100, 0.3f);
  const auto first = codec.encode(values.data(), values.size(), "k");
  const auto state = codec.state();
  const gcomm::Codec other("int4:ef=1");
  other.load_state(state);
  must(codec.encode(values.data(), values.size(), "k") == other.encode(values.data(), values.size(), "k"),
       "state");
  try {
    gcomm::Codec("int5");
    must(false, "a codec that does not exist");
  } catch (const gcomm::Error& error) {
    must(error.code() == GCOMM_ERR_CODEC, error.what());
  }
  std::puts("consumer.cpp: ok");
  return 0;
}
