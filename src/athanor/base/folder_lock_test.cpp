#include "athanor/base/folder_lock.h"

#include <gtest/gtest.h>

#include <optional>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

TEST(FolderLock, HoldsOneAtATime) {
  const TemporaryFolder folder, other;
  std::optional<FolderLock> lock(folder.path());
  const FolderLock elsewhere(other.path());
  try {
    const FolderLock second(folder.path());
    ADD_FAILURE() << "two locks on one folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(std::string(error.what()).find(folder.path()), std::string::npos);
  }
  lock.reset();
  EXPECT_NO_THROW(FolderLock(folder.path()));
}

TEST(FolderLock, WantsAFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(FolderLock(folder.path("none")), Error);
}

}  // namespace
}  // namespace athanor
