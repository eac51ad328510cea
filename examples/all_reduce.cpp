// C++: gradients averaged over all ranks while the next ones are computed.
//
// c++ -std=c++17 examples/all_reduce.cpp $(pkg-config --cflags --libs gcomm) -o all_reduce
// Started as examples/all_reduce.c is, by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
#include <cstdio>
#include <exception>
#include <gcomm/gcomm.hpp>
#include <string>
#include <utility>
#include <vector>

int main() {
  try {
    const gcomm::Communicator comm = gcomm::Communicator::from_env();
    const gcomm::Codec codec = comm.codec("nvfp4");  // 4.5 bits an element
    std::vector<std::vector<float>> layers;
    std::vector<gcomm::Work> works;
    for (int layer = 0; layer < 4; ++layer) {
      layers.emplace_back(std::size_t{1} << 20, static_cast<float>((layer + 1) * (comm.rank() + 1)));
      // Returns at once; a vector's memory stays where it is when the list of vectors grows.
      std::vector<float>& gradient = layers.back();
      const std::string key = "layer" + std::to_string(layer);
      works.push_back(comm.all_reduce(gradient.data(), gradient.size(), codec, GCOMM_AVG, key.c_str()));
    }
    bool right = true;
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i].wait();  // throws what went wrong: gcomm::Error has a code and the rank at fault
      const float exact = static_cast<float>(i + 1) * static_cast<float>(comm.size() + 1) / 2.0f;
      right = right && layers[i][12345] > 0.8f * exact && layers[i][12345] < 1.2f * exact;
    }
    const gcomm_comm_stats stats = comm.stats();
    if (comm.rank() == 0) {
      std::printf("%d ranks: %.2f of the uncompressed bytes over %s\n", comm.size(),
                  static_cast<double>(stats.wire_bytes) / static_cast<double>(stats.raw_bytes),
                  comm.transport().c_str());
    }
    comm.close();
    return right ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
