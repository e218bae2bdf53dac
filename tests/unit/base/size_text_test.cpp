#include "base/size_text.h"

#include <gtest/gtest.h>

namespace lily {
namespace {

TEST(SizeText, HasDigitsThatSaySomething) {
  EXPECT_EQ(size_text(0), "0 bytes");
  EXPECT_EQ(size_text(999), "999 bytes");
  EXPECT_EQ(size_text(1024), "1 kB");
  EXPECT_EQ(size_text(65'863'680), "65.9 MB");
  EXPECT_EQ(size_text(uint64_t{4} << 30U), "4.29 GB");
}

}  // namespace
}  // namespace lily
