// The shared secret of a job: who proves that he has it may speak, everybody else is not even read.
//
// Called by whatever listens on or connects to a socket. Thread safety: values.
// Source: HMAC (RFC 2104) with SHA-256, by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace athanor {

class Secret {
 public:
  static constexpr size_t proof_bytes = 32, nonce_bytes = 32;
  using Proof = std::array<std::byte, proof_bytes>;
  using Nonce = std::array<std::byte, nonce_bytes>;

  // Any bytes; throws a user error if there are none.
  explicit Secret(std::string bytes);
  static Secret random();  // 32 bytes of the system's randomness

  // The code of the pieces, each with its length, so that no two lists of pieces have the same one by being
  // cut differently. The first piece should say what is proven.
  Proof prove(std::initializer_list<std::span<const std::byte>> pieces) const;
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::span<const std::byte> bytes_of(std::string_view text);
std::string hex_of(std::span<const std::byte> bytes);  // two digits each
// In a time that does not depend on where they differ.
bool equal_proofs(const Secret::Proof& a, const Secret::Proof& b);
Secret::Nonce random_nonce();

}  // namespace athanor
