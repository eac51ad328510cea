// gcomm.hpp in C++17, first in its file: it brings all that it needs.
#include <cstdio>

#include "gcomm/gcomm.hpp"

int main() {
  const std::vector<gcomm::Communicator> ranks = gcomm::Communicator::local(2, gcomm::Config{5.0, 0});
  std::vector<float> sent(1000, 3.0f), received(1000), scattered(500), both(1000);
  std::vector<gcomm::Work> works;
  works.push_back(ranks[0].send(sent.data(), sent.size(), 1, ranks[0].codec("fp16:min_bytes=0")));
  works.push_back(ranks[1].recv(received.data(), received.size(), 0, ranks[1].codec("fp16:min_bytes=0")));
  for (const gcomm::Communicator& rank : ranks) {
    works.push_back(rank.reduce_scatter(sent.data(), rank.rank() == 0 ? scattered.data() : both.data(), 500));
  }
  for (const gcomm::Work& work : works) work.wait();
  if (received != sent || scattered != std::vector<float>(500, 6.0f)) return 1;
  if (ranks[0].stats().calls != 2 || ranks[0].size() != 2 || ranks[0].transport() != "local") return 2;
  ranks[0].close();
  try {
    ranks[0].barrier();
    return 3;
  } catch (const gcomm::Error& error) {
    if (error.code() != GCOMM_ERR_CLOSED) return 4;
  }
  std::puts("capi_header: ok");
  return 0;
}
