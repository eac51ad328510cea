// What fork() leaves behind: a child has the objects of its parent, but none of their threads.
#pragma once

namespace gcomm {

// 0 in the process that first asked, one more in each child after a fork(). An object that remembers the value
// it was made under knows by one comparison that it is a child's copy.
unsigned fork_generation() noexcept;

}  // namespace gcomm
