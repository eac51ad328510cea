// Threads of the library's own.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace gcomm {

// Starts a thread that takes none of the program's signals: they are for its own threads. What a thread brings
// on itself (a bad address, an abort) still reaches handlers that print where it was.
template <typename Body>
std::thread start_thread(Body&& body) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&blocked, own);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  struct Restore {
    const sigset_t& before;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } const restore{before};
  return std::thread(std::forward<Body>(body));
}

}  // namespace gcomm
