#include "athanor/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "athanor/base/error_test_support.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/data/sampler.h"

namespace athanor {
namespace {

using testing::HasSubstr;

using Documents = std::vector<std::vector<int32_t>>;

void write(FileEnvironment& files, const std::string& path, const Documents& documents,
           TokenFileOptions options) {
  write_token_file(files, path, options, [&](TokenFileWriter& writer) {
    for (const auto& document : documents) {
      writer.append(document);
      writer.end_document();
    }
  });
}

std::vector<int32_t> read(const TokenSource& file, int64_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  file.read(first, ids);
  return ids;
}

std::string raw(FileEnvironment& files, const std::string& path) {
  return read_file(files, path, 1 << 30);
}

template <class T>
void patch(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// Puts a right checksum on a header that was changed, so that the checks behind it are reached.
void seal(std::string& bytes) {
  patch(bytes, 124, crc32c(std::string_view(bytes).substr(0, 124)));
}

TEST(TokenFile, BytesAreThoseOfTheSpecification) {
  MemoryFileEnvironment files;
  write(files, "t", {{1, 2, 3}, {}, {4, 5}}, {.vocabulary_size = 257});
  std::string expected(164, '\0');
  expected.replace(0, 8, "ATHTOK\r\n");
  patch(expected, 8, uint32_t{1});
  patch(expected, 12, uint32_t{2});
  patch(expected, 16, uint64_t{5});
  patch(expected, 24, uint64_t{2});
  patch(expected, 32, uint64_t{257});
  patch(expected, 40, uint64_t{65536});
  for (size_t i = 0; i < 5; ++i) patch(expected, 128 + 2 * i, static_cast<uint16_t>(i + 1));
  patch(expected, 152, uint64_t{3});
  patch(expected, 160, crc32c(std::string_view(expected).substr(128, 10)));
  patch(expected, 48, crc32c(std::string_view(expected).substr(138)));
  seal(expected);
  EXPECT_EQ(raw(files, "t"), expected);
}

TEST(TokenFile, RoundTripOfBothWidthsAndManyBlocks) {
  for (const int64_t vocabulary : {2L, 257L, 65'536L, 65'537L, 2'147'483'647L}) {
    MemoryFileEnvironment files;
    Documents documents;
    std::vector<int32_t> all;
    uint32_t word = 7;
    for (size_t length : {1U, 1000U, 4999U, 3U, 20'000U}) {
      std::vector<int32_t> document(length);
      for (auto& id : document) {
        word = word * 1664525U + 1013904223U;
        id = static_cast<int32_t>(static_cast<int64_t>(word) % vocabulary);
      }
      all.insert(all.end(), document.begin(), document.end());
      documents.push_back(document);
    }
    write(files, "t", documents, {.vocabulary_size = vocabulary, .block_bytes = 4096});
    const auto file = TokenFile::open(files, "t");
    file->verify();
    EXPECT_EQ(file->token_count(), static_cast<int64_t>(all.size()));
    EXPECT_EQ(file->document_count(), 5);
    EXPECT_EQ(file->vocabulary_size(), vocabulary);
    EXPECT_EQ(read(*file, 0, file->token_count()), all);
    EXPECT_EQ(read(*file, 5999, 3), (std::vector<int32_t>(all.begin() + 5999, all.begin() + 6002)));
    EXPECT_TRUE(read(*file, file->token_count(), 0).empty());
    int64_t begin = 0;
    for (int64_t number = 0; number < 5; ++number) {
      const int64_t end = begin + static_cast<int64_t>(documents[static_cast<size_t>(number)].size());
      for (const int64_t position : {begin, (begin + end) / 2, end - 1}) {
        const Document found = file->document_at(position);
        EXPECT_EQ(found.number, number);
        EXPECT_EQ(found.begin, begin);
        EXPECT_EQ(found.end, end);
      }
      begin = end;
    }
  }
}

TEST(TokenFile, EmptyFileIsAFile) {
  MemoryFileEnvironment files;
  write(files, "t", {{}, {}}, {.vocabulary_size = 257});
  const auto file = TokenFile::open(files, "t");
  EXPECT_EQ(file->token_count(), 0);
  EXPECT_EQ(file->document_count(), 0);
  file->verify();
}

TEST(TokenFile, IdsOutsideTheVocabularyAreNotWritten) {
  MemoryFileEnvironment files;
  EXPECT_THAT(error_of([&] { write(files, "t", {{1, 257}}, {.vocabulary_size = 257}); }),
              HasSubstr("token 1 has id 257"));
  EXPECT_THAT(error_of([&] { write(files, "t", {{-1}}, {.vocabulary_size = 257}); }), HasSubstr("id -1"));
  EXPECT_FALSE(files.exists("t"));
}

TEST(TokenFile, EveryShorteningIsRefused) {
  MemoryFileEnvironment files;
  write(files, "t", {{1, 2, 3}, {4, 5}}, {.vocabulary_size = 257});
  const std::string whole = raw(files, "t");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(files, "cut", std::string_view(whole).substr(0, size));
    EXPECT_THAT(error_of([&] { TokenFile::open(files, "cut"); }), HasSubstr("token file 'cut'"));
  }
  write_file_atomically(files, "cut", whole + '\0');
  EXPECT_THAT(error_of([&] { TokenFile::open(files, "cut"); }), HasSubstr("165 bytes"));
}

TEST(TokenFile, EveryFlippedBitIsFound) {
  MemoryFileEnvironment memory;
  write(memory, "t", {{1, 2, 3}, {4, 5}}, {.vocabulary_size = 257});
  const auto size = static_cast<int64_t>(raw(memory, "t").size());
  for (int64_t byte = 0; byte < size; ++byte) {
    for (const uint8_t mask : {uint8_t{1}, uint8_t{16}, uint8_t{128}}) {
      FaultyFileEnvironment files(memory,
                                  {.flip = BitFlip{.name_contains = "t", .byte = byte, .mask = mask}});
      EXPECT_THAT(error_of([&] { TokenFile::open(files, "t")->verify(); }), HasSubstr("token file 't'"))
          << byte << " " << int{mask};
    }
  }
}

TEST(TokenFile, DamagedBlockIsFoundWhenItIsRead) {
  MemoryFileEnvironment memory;
  write(memory, "t", {std::vector<int32_t>(10'000, 7)}, {.vocabulary_size = 257, .block_bytes = 4096});
  FaultyFileEnvironment files(memory, {.flip = BitFlip{.name_contains = "t", .byte = 128 + 4096 + 10}});
  const auto file = TokenFile::open(files, "t");
  EXPECT_EQ(read(*file, 0, 2048), std::vector<int32_t>(2048, 7));
  EXPECT_EQ(read(*file, 4096, 2000), std::vector<int32_t>(2000, 7));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(error_of([&] { read(*file, 2047, 2); }), HasSubstr("block 1 (bytes 4224 to 8320)"));
  }
}

// Headers with a right checksum and wrong numbers: refused without allocating what they claim.
TEST(TokenFile, HostileNumbersAreRefused) {
  MemoryFileEnvironment files;
  write(files, "t", {{1, 2, 3}, {4, 5}}, {.vocabulary_size = 257});
  const std::string whole = raw(files, "t");
  const auto refused = [&]<class T>(size_t offset, T value, const std::string& reason) {
    std::string bytes = whole;
    patch(bytes, offset, value);
    seal(bytes);
    write_file_atomically(files, "bad", bytes);
    EXPECT_THAT(error_of([&] { TokenFile::open(files, "bad")->verify(); }), HasSubstr(reason)) << offset;
  };
  refused(8, uint32_t{3}, "version 3");
  refused(8, uint32_t{0}, "version 0");
  for (const uint32_t width : {0U, 1U, 3U, 8U, 0xffffffffU}) refused(12, width, "tokens of");
  refused(12, uint32_t{4}, "need");
  for (const uint64_t count : {uint64_t{0}, uint64_t{4}, uint64_t{6}, uint64_t{1} << 40, uint64_t{1} << 62,
                               uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} / 2 + 1}) {
    refused(16, count, "");
    refused(24, count, "");
  }
  refused(32, uint64_t{0}, "vocabulary of 0");
  refused(32, uint64_t{65'537}, "vocabulary of 65537");
  refused(32, uint64_t{5}, "token 4 has id 5");
  for (const uint64_t block :
       {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{65535}, uint64_t{1} << 31}) {
    refused(40, block, "blocks of");
  }
  refused(60, uint64_t{1}, "fields this program does not know");
  // Document starts that lie, with right checksums all the way.
  for (const auto& [place, start] : std::vector<std::pair<size_t, uint64_t>>{
           {144, 1}, {152, 0}, {152, 5}, {152, ~uint64_t{0}}, {144, uint64_t{1} << 63}}) {
    std::string bytes = whole;
    patch(bytes, place, start);
    patch(bytes, 48, crc32c(std::string_view(bytes).substr(138)));
    seal(bytes);
    write_file_atomically(files, "bad", bytes);
    EXPECT_THAT(error_of([&] { TokenFile::open(files, "bad"); }), HasSubstr("starts at token"));
  }
}

TEST(TokenFile, UnlearnedStretches) {
  MemoryFileEnvironment files;
  const auto fill = [](TokenFileWriter& writer) {
    const std::vector<int32_t> ids = {1, 2, 3};
    writer.append(ids, false);
    writer.append(std::span(ids).first(1), false);  // one stretch with those before
    writer.append(ids);
    writer.end_document();
    writer.append(std::span(ids).first(2), false);
    writer.append({}, false);
    writer.append(ids);
    writer.append(std::span(ids).first(1), false);
    EXPECT_EQ(writer.unlearned_count(), 7);
  };
  write_token_file(files, "t", {.vocabulary_size = 257, .tokenizer_identity = 0xabcdef01}, fill);
  const auto file = TokenFile::open(files, "t");
  file->verify();
  EXPECT_EQ(file->tokenizer_identity(), 0xabcdef01U);
  EXPECT_EQ(file->unlearned_stretches(), 3);
  const auto expect = [&](TokenRange in, TokenRange out) { EXPECT_EQ(file->unlearned_in(in), out); };
  expect({0, 13}, {0, 4});
  expect({2, 3}, {2, 3});
  expect({4, 13}, {7, 9});
  expect({4, 7}, {7, 7});
  expect({8, 9}, {8, 9});
  expect({9, 13}, {12, 13});
  expect({9, 12}, {12, 12});

  // The layout of version 2: 13 tokens, 6 bytes of padding, 2 document starts, 3 stretches, a checksum.
  const std::string bytes = raw(files, "t");
  ASSERT_EQ(bytes.size(), 128U + 26 + 6 + 16 + 48 + 4);
  const auto u64_at = [&](size_t offset) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + offset, 8);
    return value;
  };
  EXPECT_EQ(u64_at(52), 3U);
  const std::vector<uint64_t> borders = {0, 4, 7, 9, 12, 13};
  for (size_t i = 0; i < borders.size(); ++i) EXPECT_EQ(u64_at(176 + 8 * i), borders[i]);

  // Borders that lie, with right checksums all the way.
  const auto sealed = [&](std::string changed) {
    patch(changed, 48, crc32c(std::string_view(changed).substr(154)));
    seal(changed);
    write_file_atomically(files, "bad", changed);
  };
  for (const auto& [place, border] : std::vector<std::pair<size_t, uint64_t>>{
           {0, 4}, {1, 0}, {1, 7}, {2, 4}, {5, 14}, {5, ~uint64_t{0}}, {0, uint64_t{1} << 63}}) {
    std::string changed = bytes;
    patch(changed, 176 + 8 * place, border);
    sealed(changed);
    EXPECT_THAT(error_of([&] { TokenFile::open(files, "bad"); }), HasSubstr("unlearned stretches is token"));
  }
  for (const uint64_t count : {uint64_t{2}, uint64_t{4}, uint64_t{1} << 60, ~uint64_t{0}}) {
    std::string changed = bytes;
    patch(changed, 52, count);
    sealed(changed);
    EXPECT_THAT(error_of([&] { TokenFile::open(files, "bad"); }), HasSubstr("stretches"));
  }
}

// A file that needs nothing of version 2 has the bytes it always had.
TEST(TokenFile, PlainFilesStayVersion1) {
  MemoryFileEnvironment files;
  write(files, "plain", {{1, 2}}, {.vocabulary_size = 257});
  write(files, "named", {{1, 2}}, {.vocabulary_size = 257, .tokenizer_identity = 5});
  EXPECT_EQ(raw(files, "plain")[8], 1);
  EXPECT_EQ(raw(files, "named")[8], 2);
  EXPECT_EQ(TokenFile::open(files, "plain")->tokenizer_identity(), 0U);
  EXPECT_EQ(TokenFile::open(files, "named")->tokenizer_identity(), 5U);
}

TEST(TokenFile, OtherFilesAreRefused) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "text", std::string(500, 'x'));
  EXPECT_THAT(error_of([&] { TokenFile::open(files, "text"); }), HasSubstr("does not begin as one"));
  EXPECT_THAT(error_of([&] { TokenFile::open(files, "none"); }), HasSubstr("No such file"));
}

TEST(TokenFile, KilledAnywhereThereIsNoHalfFile) {
  const Documents documents = {std::vector<int32_t>(5000, 9), {1, 2}};
  const TokenFileOptions options{.vocabulary_size = 257, .block_bytes = 4096};
  MemoryFileEnvironment counting_memory;
  FaultyFileEnvironment counting(counting_memory, {});
  write(counting, "t", documents, options);
  const auto operations = static_cast<int64_t>(counting.log().size());
  EXPECT_GT(operations, 8);
  for (int64_t kill_at = 0; kill_at < operations; ++kill_at) {
    for (const auto loss : {CrashLoss::nothing, CrashLoss::everything_not_synced}) {
      MemoryFileEnvironment memory;
      FaultyFileEnvironment files(memory, {.kill_at = kill_at, .tear = true});
      EXPECT_THROW(write(files, "t", documents, options), ProcessKilled);
      memory.crash(loss);
      if (memory.exists("t")) TokenFile::open(memory, "t")->verify();
    }
  }
}

// The bytes of a token file of u16 zeros with `tail` at its end; what lies between is a hole.
void write_sparse(const std::string& path, int64_t tokens, const std::vector<uint16_t>& tail) {
  constexpr int64_t block = 1 << 20;
  const std::string zeros(block, '\0');
  const int64_t token_bytes = tokens * 2, tail_bytes = static_cast<int64_t>(tail.size()) * 2;
  const int64_t blocks = (token_bytes + block - 1) / block, padded = (token_bytes + 7) / 8 * 8;
  std::vector<uint32_t> checksums(static_cast<size_t>(blocks), crc32c(zeros));
  std::string last = zeros.substr(0, static_cast<size_t>(token_bytes - (blocks - 1) * block));
  ASSERT_LE(tail_bytes, static_cast<int64_t>(last.size()));
  if (tail_bytes > 0) {
    std::memcpy(last.data() + (static_cast<int64_t>(last.size()) - tail_bytes), tail.data(),
                static_cast<size_t>(tail_bytes));
  }
  checksums.back() = crc32c(last);
  std::string index(static_cast<size_t>(padded - token_bytes + 8), '\0');
  index.append(reinterpret_cast<const char*>(checksums.data()), checksums.size() * 4);
  std::string header(128, '\0');
  header.replace(0, 8, "ATHTOK\r\n");
  patch(header, 8, uint32_t{1});
  patch(header, 12, uint32_t{2});
  patch(header, 16, static_cast<uint64_t>(tokens));
  patch(header, 24, uint64_t{1});
  patch(header, 32, uint64_t{65'536});
  patch(header, 40, static_cast<uint64_t>(block));
  patch(header, 48, crc32c(index));
  seal(header);
  const auto file = system_files().create(path, {});
  file->write_at(0, std::as_bytes(std::span(header)));
  file->write_at(128 + token_bytes - tail_bytes, std::as_bytes(std::span(tail)));
  file->write_at(128 + token_bytes, std::as_bytes(std::span(index)));
  file->close();
}

TEST(TokenFile, OffsetsAreWide_P48_TokensBeyondTwoGibibytes) {
  const TemporaryFolder folder;
  constexpr int64_t token_bytes = (int64_t{1} << 31) + 4096;
  std::vector<uint16_t> tail(2048);
  std::iota(tail.begin(), tail.end(), uint16_t{60'000});
  write_sparse(folder.path("big.tokens"), token_bytes / 2, tail);
  const auto file = TokenFile::open(system_files(), folder.path("big.tokens"));
  EXPECT_EQ(file->token_count(), token_bytes / 2);
  constexpr int64_t first = int64_t{1} << 30;  // at byte 2^31 of the tokens
  const auto ids = read(*file, first, 2048);
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], 60'000 + static_cast<int32_t>(i));
  EXPECT_EQ(read(*file, first - 1, 2), (std::vector<int32_t>{0, 60'000}));
  EXPECT_EQ(file->document_at(first).end, token_bytes / 2);
}

TEST(TokenStream, TotalIsExact_P49_TenBillionTokensInShards) {
  const TemporaryFolder folder;
  constexpr int64_t total = 10'251'184'259;
  std::vector<std::shared_ptr<const TokenSource>> shards;
  for (int64_t i = 0; i < 103; ++i) {
    const std::string path = folder.path(fmt::format("shard_{}.tokens", i));
    write_sparse(path, total / 103 + (i < total % 103 ? 1 : 0), {});
    shards.push_back(TokenFile::open(system_files(), path));
  }
  const TokenStream stream(std::move(shards));
  ASSERT_EQ(stream.token_count(), total);
  EXPECT_EQ(stream.document_count(), 103);
  EXPECT_EQ(stream.document_at(total - 1).number, 102);
  EXPECT_EQ(read(stream, total - 2, 2), (std::vector<int32_t>{0, 0}));
  const Sampler sampler({0, stream.token_count()}, {.sequence_length = 1024});
  const DataReport report = plan_epochs(stream, sampler, 20'021'845, 0);
  EXPECT_EQ(report.tokens, total);
  EXPECT_EQ(report.samples_per_epoch, 10'010'922);
  EXPECT_EQ(report.epochs_needed, 3);
  EXPECT_THAT(describe(report), HasSubstr("103 documents, 10251184259 tokens, 10010922 samples an epoch"));
}

}  // namespace
}  // namespace athanor
