#include "transport/tcp/mesh_failures.h"

namespace gcomm::tcp {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

void check_fellow(const MeshSetup& setup, const Hello& hello, Verdict found) {
  const std::string me = rank_name(setup.rank);
  const std::string other = "rank " + std::to_string(hello.rank);
  const int culprit = hello.rank < static_cast<std::uint32_t>(setup.size) ? static_cast<int>(hello.rank) : -1;
  switch (found) {
    case Verdict::kWrongSize:
      throw Error(Code::kInvalid,
                  "size: " + other + " was created with " + std::to_string(hello.size) + " ranks, " + me +
                      " with " + std::to_string(setup.size),
                  culprit);
    case Verdict::kWrongSlot:
      throw Error(Code::kInvalid,
                  "slot: " + other + " was created with " + std::to_string(hello.slot) + " bytes, " + me +
                      " with " + std::to_string(setup.slot),
                  culprit);
    case Verdict::kTaken:
      throw Error(Code::kInvalid, "rank: two processes are " + other, culprit);
    default:
      return;
  }
}

Error refusal(const MeshSetup& setup, const Answer& answer, int peer, const std::string& address) {
  const std::string me = rank_name(setup.rank);
  const std::string other = rank_name(peer) + " at " + address;
  const auto problem = [&]() -> std::string {
    if (answer.magic != kAnswerMagic) {
      return "addresses: " + me + " found something that is not gcomm at " + other;
    }
    switch (answer.verdict) {
      case Verdict::kWrongToken:
        return "token: " + other + " has another token than " + me;
      case Verdict::kWrongVersion:
        return "version: " + other + " speaks version " + std::to_string(answer.version) +
               " of gcomm's connections, " + me + " version " + std::to_string(kProtocolVersion);
      case Verdict::kWrongSize:
        return "size: " + other + " was created with " + std::to_string(answer.size) + " ranks, " + me +
               " with " + std::to_string(setup.size);
      case Verdict::kWrongSlot:
        return "slot: " + other + " was created with " + std::to_string(answer.slot) + " bytes, " + me +
               " with " + std::to_string(setup.slot);
      case Verdict::kTaken:
        return "rank: two processes are " + me;
      case Verdict::kNoMemory:
        return "memory: " + other + " was not passed the memory that " + me + " means to share";
      default:
        return "addresses: " + me + " expected " + other + ", which says it is rank " +
               std::to_string(answer.rank);
    }
  };
  return Error(Code::kInvalid, problem(), peer);
}

}  // namespace gcomm::tcp
