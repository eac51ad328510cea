// Which instructions ran: the encoder is made to fault on a page that cannot be read, and the instruction that
// faulted is looked at. VEX and EVEX prefixes tell AVX2 and AVX-512 from plain SSE.
#include <csetjmp>
#include <csignal>

#include "base/error.h"
#include "codec_harness.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/mman.h>
#include <ucontext.h>

namespace {

using namespace codec_test;

sigjmp_buf back;
volatile unsigned char faulting_byte;

void on_fault(int, siginfo_t*, void* context) {
  const auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
  faulting_byte = *reinterpret_cast<const unsigned char*>(machine->gregs[REG_RIP]);
  siglongjmp(back, 1);
}

unsigned char first_byte_of_load(const BlockCodec& codec, const void* unreadable) {
  std::vector<std::uint8_t> wire(codec.max_encoded_bytes(kTile));
  EncodeJob job;
  job.src = unreadable;
  job.count = kTile;
  job.dst = wire.data();
  job.capacity = wire.size();
  faulting_byte = 0;
  if (sigsetjmp(back, 1) == 0) {
    codec.encode(job);
  }
  return faulting_byte;
}

}  // namespace

int main() {
  void* page = mmap(nullptr, kTile * 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  CHECK(page != MAP_FAILED);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    CHECK(parse_isa(isa_name(isa)) == isa);
    if (!isa_available(isa)) {
      std::printf("%s: not here\n", isa_name(isa));
      CHECK_THROWS(BlockCodec::make(parse_spec("int8"), isa), Code::kUnsupported);
      continue;
    }
    for (const FormatInfo& format : formats()) {
      const auto codec = BlockCodec::make(parse_spec(format.name), isa);
      CHECK(codec->isa() == isa);
      const unsigned char byte = first_byte_of_load(*codec, page);
      const bool vex = byte == 0xC4 || byte == 0xC5;
      const bool evex = byte == 0x62;
      const bool right = isa == Isa::kAvx512 ? evex : isa == Isa::kAvx2 ? vex : !vex && !evex && byte != 0;
      CHECK(right, "%s on %s: instruction begins with %02x", format.name, isa_name(isa), byte);
    }
  }
  CHECK(isa_available(best_isa()) && isa_available(Isa::kScalar));
  CHECK_THROWS(parse_isa("neon"), Code::kInvalid);
  return check::report("codec_which_isa");
}
#else
int main() {
  CHECK(gcomm::codec::best_isa() == gcomm::codec::Isa::kScalar);
  return check::report("codec_which_isa");
}
#endif
