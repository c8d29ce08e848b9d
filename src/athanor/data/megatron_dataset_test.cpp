#include "athanor/data/megatron_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "athanor/base/error_test_support.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t any = std::numeric_limits<int32_t>::max();

std::string hex(const std::string& text) {
  std::string bytes;
  int digits = 0, value = 0;
  for (const char c : text) {
    if (c == ' ' || c == '\n') continue;
    value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits % 2 == 0) {
      bytes.push_back(static_cast<char>(value));
      value = 0;
    }
  }
  return bytes;
}

std::string contents(FileEnvironment& files, const std::string& path) {
  return read_file(files, path, 1 << 30);
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An index of any contents.
struct Index {
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {};
  std::vector<int64_t> offsets = {}, documents = {};
  std::vector<int8_t> modes = {};
  std::optional<uint64_t> sequence_count = {}, document_count = {};

  std::string bytes() const {
    std::string text("MMIDIDX\0\0", 9);
    put(text, version);
    put(text, type);
    put(text, sequence_count.value_or(lengths.size()));
    put(text, document_count.value_or(documents.size()));
    for (const auto value : lengths) put(text, value);
    for (const auto value : offsets) put(text, value);
    for (const auto value : documents) put(text, value);
    for (const auto value : modes) put(text, value);
    return text;
  }
};

std::vector<int32_t> read(const TokenSource& source, int64_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  source.read(first, ids);
  return ids;
}

const Index two_documents = {.lengths = {3, 2, 3}, .offsets = {0, 6, 10}, .documents = {0, 1, 3}};
const std::string eight_tokens("\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0", 16);

TEST(MegatronDataset, BytesAreThoseOfTheSpecification) {
  MemoryFileEnvironment files;
  write_megatron_dataset(files, "x", 50'257, [](MegatronWriter& writer) {
    writer.append(std::vector<int32_t>{1, 2, 3});
    writer.end_document();
    writer.append(std::vector<int32_t>{4, 5});
    writer.end_sequence();
    writer.append(std::vector<int32_t>{6, 7, 8});
    writer.end_document();
    writer.end_document();  // nothing since
  });
  EXPECT_EQ(contents(files, "x.idx"),
            hex("4d4d49444944580000 0100000000000000 08 0300000000000000 0300000000000000"
                "030000000200000003000000"
                "0000000000000000 0600000000000000 0a00000000000000"
                "0000000000000000 0100000000000000 0300000000000000"));
  EXPECT_EQ(contents(files, "x.bin"), eight_tokens);
  EXPECT_EQ(two_documents.bytes(), contents(files, "x.idx"));

  const auto data = MegatronDataset::open(files, "x", any);
  EXPECT_EQ(data->token_count(), 8);
  EXPECT_EQ(data->document_count(), 2);
  EXPECT_EQ(data->sequence_count(), 3);
  EXPECT_EQ(data->vocabulary_size(), 65'536);
  EXPECT_THAT(read(*data, 0, 8), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(read(*data, 4, 3), ElementsAre(5, 6, 7));
  EXPECT_TRUE(read(*data, 8, 0).empty());
  EXPECT_EQ(data->document(1).begin, 3);
  EXPECT_EQ(data->document(1).end, 8);
  for (int64_t token = 0; token < 8; ++token) EXPECT_EQ(data->document_at(token).number, token < 3 ? 0 : 1);
}

TEST(MegatronDataset, WidthIsThatOfTheVocabulary) {
  for (const int64_t vocabulary : {2L, 65'499L, 65'500L, 2'147'483'647L}) {
    MemoryFileEnvironment files;
    const auto largest = static_cast<int32_t>(vocabulary - 1);
    write_megatron_dataset(files, "x", vocabulary, [&](MegatronWriter& writer) {
      writer.append(std::vector<int32_t>{0, largest, 1});
    });
    EXPECT_EQ(files.status("x.bin")->size, vocabulary < 65'500 ? 6 : 12);
    const auto data = MegatronDataset::open(files, "x", vocabulary);
    EXPECT_THAT(read(*data, 0, 3), ElementsAre(0, largest, 1));
    EXPECT_EQ(data->document_count(), 1);
    EXPECT_THAT(
        error_of([&] {
          write_megatron_dataset(files, "y", vocabulary, [&](MegatronWriter& writer) {
            writer.append(std::vector<int32_t>{largest, largest + (largest < any ? 1 : -largest - 1)});
          });
        }),
        HasSubstr("token 1 has id"));
    EXPECT_FALSE(files.exists("y.bin"));
  }
}

TEST(MegatronDataset, EveryIntegerTypeIsReadAndNoOther) {
  const auto ids_of_type = [](uint8_t code, const std::string& tokens, size_t width) {
    MemoryFileEnvironment files;
    write_file_atomically(files, "x.bin", tokens);
    const auto count = static_cast<int32_t>(tokens.size() / width);
    write_file_atomically(
        files, "x.idx", Index{.type = code, .lengths = {count}, .offsets = {0}, .documents = {0, 1}}.bytes());
    const auto data = MegatronDataset::open(files, "x", any);
    return read(*data, 0, data->token_count());
  };
  EXPECT_THAT(ids_of_type(1, std::string("\1\377", 2), 1), ElementsAre(1, 255));
  EXPECT_THAT(ids_of_type(2, std::string("\1\177", 2), 1), ElementsAre(1, 127));
  EXPECT_THAT(ids_of_type(3, std::string("\1\0\377\177", 4), 2), ElementsAre(1, 32767));
  EXPECT_THAT(ids_of_type(8, std::string("\1\0\377\377", 4), 2), ElementsAre(1, 65535));
  EXPECT_THAT(ids_of_type(4, std::string("\1\0\1\0", 4), 4), ElementsAre(65537));
  EXPECT_THAT(ids_of_type(5, std::string("\1\0\1\0\0\0\0\0", 8), 8), ElementsAre(65537));
  EXPECT_THAT(error_of([&] { ids_of_type(6, "12345678", 8); }), HasSubstr("float64"));
  EXPECT_THAT(error_of([&] { ids_of_type(7, "1234", 4); }), HasSubstr("float32"));
  EXPECT_THAT(error_of([&] { ids_of_type(0, "1234", 4); }), HasSubstr("type code 0"));
  EXPECT_THAT(error_of([&] { ids_of_type(9, "1234", 4); }), HasSubstr("type code 9"));
  // Negative ids and those that no int32_t holds.
  EXPECT_THAT(error_of([&] { ids_of_type(2, "\377", 1); }), HasSubstr("token 0 has id -1"));
  EXPECT_THAT(error_of([&] { ids_of_type(5, std::string("\0\0\0\0\1\0\0\0", 8), 8); }),
              HasSubstr("id 4294967296"));
}

TEST(MegatronDataset, SequencesMayLieAnywhereAndDocumentsMayBeEmpty) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", eight_tokens);
  // The third sequence overlaps the first; one is empty; the second document has none, the last is empty.
  write_file_atomically(
      files, "x.idx",
      Index{.lengths = {2, 3, 0, 4}, .offsets = {12, 0, 16, 2}, .documents = {0, 1, 1, 4, 4}}.bytes());
  const auto data = MegatronDataset::open(files, "x", any);
  EXPECT_EQ(data->token_count(), 9);
  EXPECT_EQ(data->document_count(), 4);
  EXPECT_THAT(read(*data, 0, 9), ElementsAre(7, 8, 1, 2, 3, 2, 3, 4, 5));
  for (int64_t first = 0; first < 9; ++first) {
    for (int64_t count = 0; count <= 9 - first; ++count) {
      const auto whole = read(*data, 0, 9);
      EXPECT_EQ(read(*data, first, count),
                (std::vector<int32_t>(whole.begin() + first, whole.begin() + first + count)));
    }
  }
  EXPECT_EQ(data->document(1).begin, data->document(1).end);
  EXPECT_EQ(data->document_at(1).number, 0);
  EXPECT_EQ(data->document_at(2).number, 2);
  EXPECT_EQ(data->document_at(8).number, 2);
}

// A small index would make every reader work for hours.
TEST(MegatronDataset, ManySequencesOfTheSameTokensAreRefused) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", eight_tokens);
  const auto open_with = [&](size_t sequences) {
    write_file_atomically(files, "x.idx",
                          Index{.lengths = std::vector<int32_t>(sequences, 8),
                                .offsets = std::vector<int64_t>(sequences, 0),
                                .documents = {0, static_cast<int64_t>(sequences)}}
                              .bytes());
    return MegatronDataset::open(files, "x", any)->token_count();
  };
  EXPECT_EQ(open_with(16), 128);
  EXPECT_THAT(error_of([&] { open_with(1000); }), HasSubstr("8000 tokens, more than 16 times the 8"));
}

TEST(MegatronDataset, ModesAreToldByTheLength) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", eight_tokens);
  Index index = two_documents;
  index.modes = {0, 0, 0};
  write_file_atomically(files, "x.idx", index.bytes());
  EXPECT_EQ(MegatronDataset::open(files, "x", any)->token_count(), 8);
  index.modes = {0, 1, 0};
  write_file_atomically(files, "x.idx", index.bytes());
  EXPECT_THAT(error_of([&] { MegatronDataset::open(files, "x", any); }),
              HasSubstr("sequence 1 has the mode 1"));
  index.modes = {0, 0};
  write_file_atomically(files, "x.idx", index.bytes());
  EXPECT_THAT(error_of([&] { MegatronDataset::open(files, "x", any); }), HasSubstr("need 94 (or 97"));
}

TEST(MegatronDataset, DamageIsNamed) {
  const auto refusal = [](const Index& index) {
    MemoryFileEnvironment files;
    write_file_atomically(files, "x.bin", eight_tokens);
    write_file_atomically(files, "x.idx", index.bytes());
    return error_of([&] { MegatronDataset::open(files, "x", any); });
  };
  const auto changed = [](const std::function<void(Index&)>& change) {
    Index index = two_documents;
    change(index);
    return index;
  };
  EXPECT_THAT(refusal(changed([](Index& i) { i.version = 2; })), HasSubstr("version 2"));
  static constexpr uint64_t huge = uint64_t{1} << 62;
  EXPECT_THAT(refusal(changed([](Index& i) { i.sequence_count = huge; })), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.document_count = huge; })), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.document_count = 0xffffffffffffffffU; })),
              HasSubstr("do not fit"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.sequence_count = 2; })), HasSubstr("94 bytes"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.lengths[1] = -1; })), HasSubstr("sequence 1 has -1 tokens"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.lengths[2] = 4; })), HasSubstr("sequence 2 has 4 tokens"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.offsets[0] = -2; })), HasSubstr("at byte -2"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.offsets[2] = 11; })), HasSubstr("at byte 11"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.documents = {1, 1, 3}; })), HasSubstr("document mark 0"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.documents = {0, 4, 3}; })), HasSubstr("document mark 1"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.documents = {0, 2, 1}; })), HasSubstr("document mark 2"));
  EXPECT_THAT(refusal(changed([](Index& i) { i.documents = {0, 1, 2}; })), HasSubstr("last document mark"));
  EXPECT_THAT(refusal({}), HasSubstr("no document marks"));

  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", eight_tokens);
  const std::string whole = two_documents.bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(files, "x.idx", std::string_view(whole).substr(0, size));
    error_of([&] { MegatronDataset::open(files, "x", any); });
  }
  write_file_atomically(files, "x.idx", std::string("X") + whole.substr(1));
  EXPECT_THAT(error_of([&] { MegatronDataset::open(files, "x", any); }), HasSubstr("begin as one"));
  EXPECT_THAT(error_of([&] { MegatronDataset::open(files, "none", any); }), HasSubstr("none.idx"));
  // Every byte changed: refused, or read without a crash.
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      write_file_atomically(files, "x.idx", bytes);
      try {
        const auto data = MegatronDataset::open(files, "x", any);
        read(*data, 0, data->token_count());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::user);
      }
    }
  }
}

TEST(MegatronDataset, PrefixIsFoundFromEitherFile) {
  MemoryFileEnvironment files;
  write_megatron_dataset(files, "x", 10, [](MegatronWriter& w) { w.append(std::vector<int32_t>{1}); });
  write_file_atomically(files, "lone.bin", "x");
  EXPECT_EQ(megatron_prefix(files, "x"), "x");
  EXPECT_EQ(megatron_prefix(files, "x.bin"), "x");
  EXPECT_EQ(megatron_prefix(files, "x.idx"), "x");
  EXPECT_EQ(megatron_prefix(files, "lone.bin"), std::nullopt);
  EXPECT_EQ(megatron_prefix(files, "none"), std::nullopt);
}

TEST(MegatronDataset, AFailedWriteLeavesWhatWasThere) {
  MemoryFileEnvironment memory;
  const auto fill = [](MegatronWriter& w) { w.append(std::vector<int32_t>{1, 2}); };
  write_megatron_dataset(memory, "x", 10, fill);
  const auto before = MegatronDataset::open(memory, "x", any)->identity();
  error_of([&] {
    write_megatron_dataset(memory, "x", 10, [](MegatronWriter& w) { w.append(std::vector<int32_t>{11}); });
  });
  EXPECT_EQ(MegatronDataset::open(memory, "x", any)->identity(), before);
}

// Files that megatron-core itself wrote (tools/reference/make_indexed_datasets.py).
TEST(MegatronDataset, FilesOfMegatronAreRead) {
  const std::string folder = ATHANOR_SOURCE_DIR "/tests/data/megatron/";
  for (const char* name : {"documents_u16", "documents_i32"}) {
    const auto data = MegatronDataset::open(system_files(), folder + name, any);
    EXPECT_EQ(data->sequence_count(), 4);
    ASSERT_EQ(data->document_count(), 3);
    EXPECT_THAT(read(*data, 0, data->token_count()), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 50256));
    EXPECT_EQ(data->document(1).begin, 3);
    EXPECT_EQ(data->document(1).end, 8);
  }
  EXPECT_THAT(error_of([&] { MegatronDataset::open(system_files(), folder + "modes", any); }),
              HasSubstr("sequence 1 has the mode 1"));
  // And ours are the same bytes.
  MemoryFileEnvironment files;
  write_megatron_dataset(files, "x", 50'257, [](MegatronWriter& writer) {
    writer.append(std::vector<int32_t>{1, 2, 3});
    writer.end_document();
    writer.append(std::vector<int32_t>{4, 5});
    writer.end_sequence();
    writer.append(std::vector<int32_t>{6, 7, 8});
    writer.end_document();
    writer.append(std::vector<int32_t>{50256});
  });
  for (const char* ending : {".bin", ".idx"})
    EXPECT_EQ(contents(files, std::string("x") + ending),
              contents(system_files(), folder + "documents_u16" + ending));
}

// A sparse file: 2.5 thousand million tokens, of which a few are written, at its very end and around 2^31.
TEST(MegatronDataset, FiveGigabytes_P47_OffsetsStay64Bit) {
  const TemporaryFolder folder;
  constexpr int64_t first = 2'000'000'000, second = 500'000'007, total = first + second;
  const std::vector<int32_t> sizes = {first, second};
  {
    std::ofstream bin(folder.path("x.bin"), std::ios::binary);
    const auto write_at = [&](int64_t token, const std::vector<uint16_t>& ids) {
      bin.seekp(2 * token);
      bin.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(2 * ids.size()));
    };
    write_at(first - 1, {7, 8});
    write_at((int64_t{1} << 31) - 1, {31, 32, 33});
    write_at(total - 2, {98, 99});
  }
  write_file_atomically(system_files(), folder.path("x.idx"),
                        Index{.lengths = sizes, .offsets = {0, 2 * first}, .documents = {0, 1, 2}}.bytes());
  ASSERT_EQ(system_files().status(folder.path("x.bin"))->size, 2 * total);
  const auto data = MegatronDataset::open(system_files(), folder.path("x"), any);
  EXPECT_EQ(data->token_count(), total);
  EXPECT_THAT(read(*data, first - 2, 4), ElementsAre(0, 7, 8, 0));
  EXPECT_THAT(read(*data, (int64_t{1} << 31) - 2, 5), ElementsAre(0, 31, 32, 33, 0));
  EXPECT_THAT(read(*data, total - 3, 3), ElementsAre(0, 98, 99));
  EXPECT_EQ(data->document_at(total - 1).number, 1);
  EXPECT_EQ(data->document_at(total - 1).end, total);
}

}  // namespace
}  // namespace athanor
