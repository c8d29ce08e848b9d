#include "athanor/base/error.h"

#include <gtest/gtest.h>

#include <set>

namespace athanor {
namespace {

TEST(Error, CarriesKindMessageAndHint) {
  const Error error(ErrorKind::retry_step, "what", "do this");
  EXPECT_EQ(error.kind(), ErrorKind::retry_step);
  EXPECT_EQ(error.message(), "what");
  EXPECT_EQ(error.hint(), "do this");
  EXPECT_STREQ(error.what(), "what\n  hint: do this");
  EXPECT_STREQ(Error(ErrorKind::user, "what").what(), "what");
}

TEST(Error, CopiesKeepTheirText) {
  // As when an error is stored and rethrown by another thread.
  std::exception_ptr stored;
  try {
    throw_user_error(std::string(100, 'x'), "hint");
  } catch (...) {
    stored = std::current_exception();
  }
  try {
    std::rethrow_exception(stored);
  } catch (const std::exception& error) {
    EXPECT_EQ(std::string(error.what()), std::string(100, 'x') + "\n  hint: hint");
    ASSERT_NE(dynamic_cast<const Error*>(&error), nullptr);
    const Error copy = dynamic_cast<const Error&>(error);
    EXPECT_NE(copy.what(), error.what());
    EXPECT_STREQ(copy.what(), error.what());
    EXPECT_EQ(copy.kind(), ErrorKind::user);
  }
}

TEST(Error, KindsHaveNames) {
  std::set<std::string_view> names;
  for (const ErrorKind kind :
       {ErrorKind::user, ErrorKind::retry_step, ErrorKind::restart_worker, ErrorKind::stop_job}) {
    names.insert(name_of(kind));
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(ErrorDeathTest, AssertionsEndTheProcessInEveryBuild) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  int evaluated = 0;
  ATHANOR_ASSERT(++evaluated == 1, "unused {}", 0);
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(ATHANOR_ASSERT(evaluated == 2, "value {}", evaluated),
               "error_test.cpp:[0-9]+: .*evaluated == 2.*value 1");
  EXPECT_DEATH(ATHANOR_ASSERT(evaluated == 2), "assertion failed: evaluated == 2");
}

}  // namespace
}  // namespace athanor
