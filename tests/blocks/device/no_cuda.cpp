#include "tests/blocks/implementations.h"

namespace lily::test {

std::vector<Implementation> cuda_implementations() { return {}; }

}  // namespace lily::test
