#include "tests/blocks/implementations.h"

namespace lily::test {

std::vector<Implementation> device_implementations() { return {}; }

}  // namespace lily::test
