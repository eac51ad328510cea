#include "gift/cpu/driver.h"

namespace gcomm::gift {

const Driver& find_driver(codec::Isa) { return scalar_driver(); }

}  // namespace gcomm::gift
