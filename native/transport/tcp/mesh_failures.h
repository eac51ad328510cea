// What goes wrong between ranks that set up their connections, in words.
#pragma once

#include <string>

#include "base/error.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/mesh.h"

namespace gcomm::tcp {

std::string rank_name(int rank);

// Who knows the token is no stranger: throws where a disagreement with it is this rank's failure too.
void check_fellow(const MeshSetup& setup, const Hello& hello, Verdict found);

// What an answer that is no welcome means for the rank that wanted to connect.
Error refusal(const MeshSetup& setup, const Answer& answer, int peer, const std::string& address);

}  // namespace gcomm::tcp
