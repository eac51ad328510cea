// How ranks that know only rank 0's host and a port find each other's listeners.
//
// Rank 0 speaks first, with a banner that names the job's port: a client connects to all candidate ports at
// once, says nothing to whatever else may listen there (a launcher's store), and stays with the one that greets
// it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/tcp.h"
#include "transport/transport.h"

namespace gcomm::tcp {

struct RendezvousPlace {
  std::string host;
  int port;
  std::string interface_name;  // where listeners go; empty: where rank 0 is reached
};

struct Rendezvous {
  std::unique_ptr<TcpListener> listener;
  std::vector<std::string> addresses;
  TcpToken token{};
};

Rendezvous serve_rendezvous(const RendezvousPlace& place, int size, Deadline deadline);
Rendezvous join_rendezvous(const RendezvousPlace& place, int rank, int size, Deadline deadline);

}  // namespace gcomm::tcp
