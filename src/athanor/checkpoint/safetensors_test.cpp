#include "athanor/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>

#include "athanor/base/crc32c.h"
#include "athanor/base/error_test_support.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
TensorBytes tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                   const std::vector<T>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

std::string raw(FileEnvironment& files, const std::string& path) {
  return read_file(files, path, 1 << 30);
}

// A file with this header text, whatever it says, and so many zero bytes of data.
std::string file_of(std::string_view header, size_t data_bytes = 0) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  bytes.append(data_bytes, '\0');
  return bytes;
}

TEST(Safetensors, EveryTypeAndShapeComesBack) {
  MemoryFileEnvironment files;
  std::vector<double> doubles = {1.5, -2.0, 1e300};
  std::vector<float> floats(12);
  std::iota(floats.begin(), floats.end(), 0.25F);
  std::vector<uint16_t> halves = {1, 2, 3, 4};
  std::vector<uint8_t> bytes = {7, 8, 9};
  std::vector<int64_t> longs = {-5};
  std::vector<int32_t> ints = {1, -1};
  const std::vector<float> none;
  const std::vector<TensorBytes> tensors = {
      tensor("bytes", DType::u8, {3}, bytes),          tensor("floats", DType::fp32, {3, 1, 4}, floats),
      tensor("doubles", DType::fp64, {3}, doubles),    tensor("bf16", DType::bf16, {2, 2}, halves),
      tensor("fp16", DType::fp16, {4}, halves),        tensor("e4m3", DType::fp8_e4m3, {3, 1}, bytes),
      tensor("e5m2", DType::fp8_e5m2, {1, 3}, bytes),  tensor("scalar", DType::int64, {}, longs),
      tensor("ints", DType::int32, {2}, ints),         tensor("empty", DType::fp32, {0, 5}, none),
      tensor("also empty", DType::bf16, {3, 0}, none), tensor("größe \"\\\n", DType::u8, {3}, bytes)};
  const int64_t size =
      write_safetensors(files, "f", tensors, {{"format", "pt"}, {"note", "quote \" and ü\n"}});
  EXPECT_EQ(size, files.status("f")->size);
  const auto file = SafetensorsFile::open(files, "f");
  file.verify();
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.header().metadata.at("note"), "quote \" and ü\n");
  EXPECT_EQ(file.header().data_offset % 8, 0);
  EXPECT_EQ(file.header().tensors.size(), tensors.size());
  for (const auto& wanted : tensors) {
    const SafetensorsEntry* entry = file.find(wanted.name);
    ASSERT_NE(entry, nullptr) << wanted.name;
    EXPECT_EQ(entry->dtype, wanted.dtype);
    EXPECT_EQ(entry->shape, wanted.shape);
    EXPECT_EQ((file.header().data_offset + entry->begin) % static_cast<int64_t>(size_of(wanted.dtype)), 0);
    std::vector<std::byte> read(static_cast<size_t>(entry->bytes()));
    file.read(*entry, read);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), wanted.bytes.begin(), wanted.bytes.end()))
        << wanted.name;
  }
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(Safetensors, BytesAreThoseOfTheFormat) {
  MemoryFileEnvironment files;
  const std::vector<float> values = {1.0F, 2.0F};
  const std::vector<uint8_t> small = {5};
  write_safetensors(files, "f",
                    std::vector{tensor("b", DType::u8, {}, small), tensor("a", DType::fp32, {2, 1}, values)},
                    {});
  const std::string bytes = raw(files, "f");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  ASSERT_EQ(bytes.size(), 8 + length + 9);
  const std::string header = bytes.substr(8, length);
  EXPECT_THAT(header, HasSubstr(R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]})"));
  EXPECT_THAT(header, HasSubstr(R"("b":{"dtype":"U8","shape":[],"data_offsets":[8,9]})"));
  EXPECT_THAT(header, HasSubstr(fmt::format(R"("athanor.crc32c.b":"{:08x}")", crc32c("\x05"))));
  EXPECT_EQ(bytes.substr(8 + length, 4), std::string("\0\0\x80\x3f", 4));
  EXPECT_EQ(bytes.back(), '\x05');
}

TEST(Safetensors, FileWithoutTensors) {
  MemoryFileEnvironment files;
  write_safetensors(files, "f", {}, {{"k", "v"}});
  const auto file = SafetensorsFile::open(files, "f");
  file.verify();
  EXPECT_TRUE(file.header().tensors.empty());
  EXPECT_EQ(file.header().metadata.at("k"), "v");
}

TEST(Safetensors, ReadsFilesOfOtherPrograms) {
  MemoryFileEnvironment files;
  // Fields in another order, spaces, types we do not use, sub-byte types, escapes.
  const std::string header =
      R"({ "x" : { "data_offsets" : [0, 16], "shape":[2], "dtype":"C64" }, "\u0079": {"shape":[2,2],)"
      R"("dtype":"F4","data_offsets":[16,18]},"z":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[18,21]}})"
      "    ";
  write_file_atomically(files, "f", file_of(header, 21));
  const auto file = SafetensorsFile::open(files, "f");
  EXPECT_EQ(file.header().tensors.size(), 3U);
  EXPECT_EQ(file.find("x")->dtype, std::nullopt);
  EXPECT_EQ(file.find("y")->dtype_name, "F4");
  EXPECT_THAT(error_of([&] { file.verify(); }), HasSubstr("no checksum"));
}

TEST(Safetensors, P125_HostileHeadersAreRefused) {
  MemoryFileEnvironment files;
  const auto refused = [&](std::string_view header, size_t data_bytes, const std::string& reason) {
    write_file_atomically(files, "f", file_of(header, data_bytes));
    const std::string message = error_of([&] { SafetensorsFile::open(files, "f"); });
    EXPECT_THAT(message, HasSubstr("safetensors file 'f'"));
    EXPECT_THAT(message, HasSubstr(reason)) << header.substr(0, 200);
  };
  const auto one = [](std::string_view fields) { return fmt::format("{{\"t\":{{{}}}}}", fields); };
  // Not the JSON of the form.
  refused("", 0, "never finished");
  refused(" {}", 0, "begin with '{'");
  refused("[]", 0, "begin with '{'");
  refused("{", 0, "not JSON");
  refused("{}x", 0, "not JSON");
  refused("{}{}", 0, "not JSON");
  refused(std::string_view("{}\0", 3), 0, "NUL");
  refused(std::string_view("{}\0garbage", 10), 0, "NUL");
  refused("{\"t\":1}", 0, "the number 1");
  refused("{\"t\":-1}", 0, "the number -1");
  refused("{\"t\":null}", 0, "null");
  refused("{\"t\":true}", 0, "truth value");
  refused("{\"t\":\"x\"}", 0, "a text");
  refused("{\"t\":[]}", 0, "a list");
  refused("{\"\xff\":{}}", 0, "not JSON");
  refused("{\"__metadata__\":{\"a\":1}}", 0, "the number 1");
  refused("{\"__metadata__\":{\"a\":{}}}", 0, "an object");
  refused("{\"__metadata__\":[]}", 0, "a list");
  refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "metadata 'a' comes twice");
  refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "comes twice");
  // Tensors.
  refused("{\"t\":{}}", 0, "lacks its dtype");
  refused(one(R"("dtype":"U8","shape":[0])"), 0, "lacks");
  refused(one(R"("shape":[1],"data_offsets":[0,1])"), 1, "lacks");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1)"), 1, "unknown field 'more'");
  refused(one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1, "two fields 'dtype'");
  refused(one(R"("dtype":"F33","shape":[1],"data_offsets":[0,1])"), 1, "unknown type 'F33'");
  refused(one(R"("dtype":["U8"],"shape":[1],"data_offsets":[0,1])"), 1, "a list");
  refused(one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1, "the number 1");
  refused(one(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1, "a list");
  refused(one(R"("dtype":"U8","shape":["1"],"data_offsets":[0,1])"), 1, "a text");
  refused(one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, "the number -1");
  refused(one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1, "the number 1.0");
  refused(one(R"("dtype":"U8","shape":[1e99],"data_offsets":[0,1])"), 1, "the number 1e99");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "1 data_offsets");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1, "3 data_offsets");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999])"), 1, "the number 9999");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615])"), 1,
          "18446744073709551615");
  // Sizes.
  refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,7])"), 7, "do not fit F32 of shape [2]");
  refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8, "do not fit");
  refused(one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1, "do not fit");
  refused(one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, "do not fit");
  refused(one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"), 0, "do not fit");
  refused(one(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])"), 5, "hole");
  refused(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), 3, "cut short");
  refused(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), 5, "something behind");
  refused("{}", 1, "something behind");
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       a, b);
  };
  refused(two("[0,4]", "[3,7]"), 7, "overlap");
  refused(two("[0,4]", "[0,4]"), 4, "overlap");
  refused(two("[0,4]", "[5,9]"), 9, "hole");
  refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      2, "'a' comes twice");
  // Nested a million deep: refused at once, not walked.
  refused("{\"t\":" + std::string(1'000'000, '['), 0, "a list");
  refused(one("\"shape\":" + std::string(1'000'000, '[')), 0, "a list");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"t\":";
  refused(objects, 0, "unknown field 't'");
  refused(one("\"dtype\":" + objects), 0, "an object");
}

TEST(Safetensors, P125_HostileLengthsAreRefusedWithoutAllocating) {
  MemoryFileEnvironment files;
  for (const uint64_t length : {uint64_t{0}, uint64_t{3}, uint64_t{100'000'001}, uint64_t{101'000'000},
                                uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::string bytes = file_of("{}");
    std::memcpy(bytes.data(), &length, 8);
    write_file_atomically(files, "f", bytes);
    EXPECT_THAT(error_of([&] { SafetensorsFile::open(files, "f"); }), HasSubstr("header")) << length;
  }
  for (size_t size = 0; size < 8; ++size) {
    write_file_atomically(files, "f", std::string(size, '\1'));
    EXPECT_THAT(error_of([&] { SafetensorsFile::open(files, "f"); }), HasSubstr("fewer than the 8"));
  }
}

std::vector<uint8_t> some_bytes(size_t size) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + 3);
  return bytes;
}

TEST(Safetensors, EveryShorteningAndEveryFlippedBitIsFound) {
  MemoryFileEnvironment memory;
  const auto one = some_bytes(40), two = some_bytes(9);
  write_safetensors(memory, "f",
                    std::vector{tensor("one", DType::fp32, {2, 5}, one), tensor("two", DType::u8, {9}, two)},
                    {{"note", "some words"}});
  const std::string whole = raw(memory, "f");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(memory, "cut", std::string_view(whole).substr(0, size));
    EXPECT_THAT(error_of([&] { SafetensorsFile::open(memory, "cut"); }), HasSubstr("'cut'"));
  }
  // A bit of a space between the JSON and the data may turn into white space of another kind: no harm.
  const size_t padding_begin = whole.rfind('}') + 1;
  const size_t data_begin = whole.size() - 49;
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      if (byte >= padding_begin && byte < data_begin) continue;
      FaultyFileEnvironment files(memory, {.flip = BitFlip{.name_contains = "f",
                                                           .byte = static_cast<int64_t>(byte),
                                                           .mask = static_cast<uint8_t>(1 << bit)}});
      EXPECT_THAT(error_of([&] { SafetensorsFile::open(files, "f").verify(); }), HasSubstr("'f'"))
          << byte << " " << bit;
    }
  }
}

TEST(Safetensors, WrongChecksumNamesTheTensor) {
  MemoryFileEnvironment memory;
  const auto one = some_bytes(16), two = some_bytes(8);
  write_safetensors(memory, "f",
                    std::vector{tensor("one", DType::u8, {16}, one), tensor("two", DType::u8, {8}, two)}, {});
  const auto size = static_cast<int64_t>(raw(memory, "f").size());
  FaultyFileEnvironment files(memory, {.flip = BitFlip{.name_contains = "f", .byte = size - 1}});
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(files, "f").verify(); }),
              HasSubstr("checksum of tensor 'two'"));
}

TEST(Safetensors, TextThatIsNotUtf8IsNotWritten) {
  MemoryFileEnvironment files;
  EXPECT_THAT(error_of([&] { write_safetensors(files, "f", {}, {{"k", "\xff"}}); }), HasSubstr("UTF-8"));
  EXPECT_FALSE(files.exists("f"));
}

TEST(Safetensors, P126_HeaderIsFilledUpWithSpaces) {
  MemoryFileEnvironment files;
  const std::vector<uint8_t> value = {9};
  std::set<size_t> remainders;
  for (size_t length = 1; length <= 16; ++length) {
    write_safetensors(files, "f", std::vector{tensor("n", DType::u8, {}, value)},
                      {{"k", std::string(length, 'v')}});
    const std::string bytes = raw(files, "f");
    uint64_t header_length = 0;
    std::memcpy(&header_length, bytes.data(), 8);
    ASSERT_EQ(header_length % 8, 0U);
    ASSERT_EQ(bytes.size(), 8 + header_length + 1);
    const std::string header = bytes.substr(8, header_length);
    const size_t json_length = header.rfind('}') + 1;
    remainders.insert(json_length % 8);
    EXPECT_LT(header_length - json_length, 8U);
    EXPECT_EQ(header.substr(json_length), std::string(header_length - json_length, ' '));
    SafetensorsFile::open(files, "f").verify();
  }
  EXPECT_EQ(remainders.size(), 8U);
}

TEST(Safetensors, PartsOfATensor) {
  MemoryFileEnvironment files;
  const auto values = some_bytes(40), other = some_bytes(3);
  write_safetensors(
      files, "f", std::vector{tensor("a", DType::u8, {3}, other), tensor("t", DType::u8, {40}, values)}, {});
  const auto file = SafetensorsFile::open(files, "f");
  std::vector<std::byte> part(7);
  file.read_part(*file.find("t"), 33, part);
  EXPECT_EQ(std::memcmp(part.data(), values.data() + 33, 7), 0);
}

TEST(Safetensors, ProducedTensorsAreThoseWrittenFromMemory) {
  MemoryFileEnvironment files;
  const auto one = some_bytes(16), two = some_bytes(24);
  const std::vector<TensorBytes> tensors = {tensor("one", DType::bf16, {8}, one),
                                            tensor("two", DType::fp64, {3, 1}, two)};
  write_safetensors(files, "memory", tensors, {{"k", "v"}});
  std::string order;
  std::vector<TensorProducer> producers;
  for (const TensorBytes& from : tensors) {
    producers.push_back({from.name, from.dtype, from.shape, [&order, from](const TensorProducer::Sink& sink) {
                           order += from.name + " ";
                           sink(from.bytes.first(5));
                           sink({});
                           sink(from.bytes.subspan(5));
                         }});
  }
  stream_safetensors(files, "produced", producers, {{"k", "v"}});
  EXPECT_EQ(raw(files, "produced"), raw(files, "memory"));
  EXPECT_EQ(order, "two one ");  // one at a time, in the order of the file
}

int64_t peak_resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long long kilobytes = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1) break;
  }
  std::fclose(file);
  return static_cast<int64_t>(kilobytes) * 1024;
}

TEST(Safetensors, P130_WritingAndCheckingCopyNoTensor) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> big(size_t{128} << 20, 42);
  const int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  write_safetensors(system_files(), folder.path("f"),
                    std::vector{tensor("big", DType::u8, {int64_t{128} << 20}, big)}, {});
  SafetensorsFile::open(system_files(), folder.path("f")).verify();
  EXPECT_LT(peak_resident_bytes() - before, int64_t{24} << 20);
}

TEST(Safetensors, P130_ProducedTensorsAreNotGathered) {
  const TemporaryFolder folder;
  const std::vector<std::byte> piece(size_t{1} << 20, std::byte{42});
  const int64_t pieces = 128;
  const int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  const TensorProducer producer{"big", DType::u8, {pieces << 20}, [&](const TensorProducer::Sink& sink) {
                                  for (int64_t i = 0; i < pieces; ++i) sink(piece);
                                }};
  stream_safetensors(system_files(), folder.path("f"), {&producer, 1}, {});
  SafetensorsFile::open(system_files(), folder.path("f")).verify();
  EXPECT_LT(peak_resident_bytes() - before, int64_t{24} << 20);
}

}  // namespace
}  // namespace athanor
