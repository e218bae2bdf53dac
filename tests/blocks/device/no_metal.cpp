#include "tests/blocks/implementations.h"

namespace lily::test {

std::vector<Implementation> metal_implementations() { return {}; }

}  // namespace lily::test
