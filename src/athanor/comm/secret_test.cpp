#include "athanor/comm/secret.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"

namespace athanor {
namespace {

TEST(Secret, ProvesWhoHasIt) {
  const Secret secret("open sesame");
  const auto proof = secret.prove({bytes_of("hello"), bytes_of("rank 3")});
  EXPECT_TRUE(equal_proofs(proof, Secret("open sesame").prove({bytes_of("hello"), bytes_of("rank 3")})));
  EXPECT_FALSE(equal_proofs(proof, Secret("open barley").prove({bytes_of("hello"), bytes_of("rank 3")})));
  EXPECT_FALSE(equal_proofs(proof, secret.prove({bytes_of("hello"), bytes_of("rank 4")})));
  EXPECT_FALSE(equal_proofs(proof, secret.prove({bytes_of("hellor"), bytes_of("ank 3")})));
  EXPECT_THROW(Secret(""), Error);
}

// Computed with Python: hmac.new(b"key", (5).to_bytes(8, "little") + b"hello", "sha256").
TEST(Secret, IsAnHmacWithSha256) {
  EXPECT_EQ(hex_of(Secret("key").prove({bytes_of("hello")})),
            "0c861c390ca5c2040c309d7139b7c05adb88e96048ef1a9be4577000ab8cb611");
}

TEST(Secret, RandomOnesDiffer) {
  EXPECT_NE(Secret::random().bytes(), Secret::random().bytes());
  EXPECT_NE(random_nonce(), random_nonce());
}

}  // namespace
}  // namespace athanor
