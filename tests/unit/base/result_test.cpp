#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/check.h"

namespace lily {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return fail(ErrorKind::invalid_input, "half: expected an even number, found {}", value);
  }
  return value / 2;
}

Result<int> quarter(int value) {
  LILY_TRY(const int once, half(value));
  LILY_TRY(const int twice, half(once));
  return twice;
}

Result<void> check_quarter(int value) {
  LILY_TRY_VOID(quarter(value));
  return {};
}

TEST(Result, TryPassesValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().message, "half: expected an even number, found 3");
  EXPECT_TRUE(check_quarter(4));
  EXPECT_EQ(check_quarter(5).error().kind, ErrorKind::invalid_input);
}

TEST(Result, ErrnoNamesTheThing) {
  errno = ENOENT;
  const Error missing = fail_errno("cannot open", "x.json").value();
  EXPECT_EQ(missing.message, "cannot open 'x.json': No such file or directory");
  EXPECT_EQ(missing.kind, ErrorKind::not_found);
}

TEST(Result, TextListsDetailsOnLinesOfTheirOwn) {
  EXPECT_EQ((Error{ErrorKind::io, "two faults", {"a", "b"}}.text()), "two faults\n  a\n  b");
}

TEST(Check, ThrowsInternalError) {
  EXPECT_THROW(LILY_CHECK(1 == 2), InternalError);
  EXPECT_NO_THROW(LILY_CHECK(1 == 1));
}

}  // namespace
}  // namespace lily
