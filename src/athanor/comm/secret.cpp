#include "athanor/comm/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {

Secret::Secret(std::string bytes) : bytes_(std::move(bytes)) {
  if (bytes_.empty()) throw_user_error("the job's secret is empty", "give every rank the same secret");
}

Secret Secret::random() {
  const Nonce bytes = random_nonce();
  return Secret(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Secret::Proof Secret::prove(std::initializer_list<std::span<const std::byte>> pieces) const {
  std::vector<unsigned char> message;
  for (const auto& piece : pieces) {
    const uint64_t length = piece.size();
    for (int i = 0; i < 8; ++i) message.push_back(static_cast<unsigned char>(length >> (8 * i)));
    for (const std::byte byte : piece) message.push_back(static_cast<unsigned char>(byte));
  }
  Proof proof{};
  unsigned int length = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), bytes_.data(), static_cast<int>(bytes_.size()), message.data(), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &length);
  ATHANOR_ASSERT(made != nullptr && length == proof_bytes, "no HMAC");
  return proof;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

bool equal_proofs(const Secret::Proof& a, const Secret::Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Secret::Nonce random_nonce() {
  Secret::Nonce nonce{};
  size_t have = 0;
  while (have < nonce.size()) {
    const ssize_t got = getrandom(nonce.data() + have, nonce.size() - have, 0);
    ATHANOR_ASSERT(got > 0 || errno == EINTR, "no randomness");
    if (got > 0) have += static_cast<size_t>(got);
  }
  return nonce;
}

}  // namespace athanor
