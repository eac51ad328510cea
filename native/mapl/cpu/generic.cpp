#include "mapl/cpu/driver.h"

namespace gcomm::mapl {

const Driver& find_driver(codec::Isa) { return scalar_driver(); }

}  // namespace gcomm::mapl
