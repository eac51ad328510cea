// What the opaque handles are.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "collective/codec_state.h"
#include "comm/communicator.h"
#include "gcomm/gcomm.h"
#include "transport/tcp/tcp.h"

struct gcomm_codec {
  std::shared_ptr<gcomm::collective::StatefulCodec> codec;
  bool borrowed = false;  // belongs to a communicator, which frees it
};

struct gcomm_comm {
  std::unique_ptr<gcomm::comm::Communicator> comm;
  std::mutex mutex;
  std::map<const gcomm::collective::StatefulCodec*, gcomm_codec> codecs;  // lent out
};

struct gcomm_tcp_listener {
  gcomm::TcpListener listener;
};

namespace gcomm::capi {

// gcomm_work is a Work of the communicator's pool, never defined as a struct of its own.
inline comm::Work* as_work(gcomm_work* work) noexcept { return reinterpret_cast<comm::Work*>(work); }
inline const comm::Work* as_work(const gcomm_work* work) noexcept {
  return reinterpret_cast<const comm::Work*>(work);
}
inline gcomm_work* as_handle(comm::WorkRef work) noexcept {
  return reinterpret_cast<gcomm_work*>(work.detach());
}

inline comm::Codec codec_of(gcomm_codec* codec) { return codec == nullptr ? nullptr : codec->codec; }

}  // namespace gcomm::capi
