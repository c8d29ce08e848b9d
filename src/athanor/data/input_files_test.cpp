#include "athanor/data/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "athanor/base/error_test_support.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/open_source.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class InputFilesTest : public testing::Test {
 protected:
  InputFilesTest() {
    for (const char* folder : {"d", "d/sub", "d/.hidden", "empty"})
      files_.make_directories(folder_.path(folder));
    for (const char* text : {"d/b.txt", "d/a.md", "d/sub/c.jsonl", "d/a.txt", "d/.x.txt", "d/.hidden/y.txt",
                             "d/picture.png", "d/a,b.txt"}) {
      write_file_atomically(files_, folder_.path(text), "text");
    }
    write_megatron_dataset(files_, folder_.path("d/m"), 10,
                           [](MegatronWriter& writer) { writer.append(std::vector<int32_t>{1}); });
    write_token_file(files_, folder_.path("d/t.any"), {.vocabulary_size = 10},
                     [](TokenFileWriter& writer) { writer.append(std::vector<int32_t>{1}); });
    std::string llmc("\xc8\xd7\x34\x01", 4);  // 20240328, a tokenizer
    llmc.resize(1024);
    write_file_atomically(files_, folder_.path("d/l.bin"), llmc);
  }
  // "KIND NAME" for each file, without the folder.
  std::vector<std::string> find(const std::string& value) {
    std::vector<std::string> found;
    for (const InputFile& input : find_input_files(files_, value)) {
      constexpr std::array names = {"text", "json", "tokens", "megatron", "llmc", "unknown"};
      std::string path = input.path;
      if (path.starts_with(folder_.path(""))) path = path.substr(folder_.path("").size());
      found.push_back(fmt::format("{} {}", names.at(static_cast<size_t>(input.kind)), path));
    }
    return found;
  }
  std::string path(const std::string& name) { return folder_.path(name); }

  FileEnvironment& files_ = system_files();
  TemporaryFolder folder_;
};

TEST_F(InputFilesTest, FoldersAreSortedAndHoldKnownKinds) {
  EXPECT_THAT(find(path("d")),
              ElementsAre("text d/a,b.txt", "text d/a.md", "text d/a.txt", "text d/b.txt", "llmc d/l.bin",
                          "megatron d/m", "json d/sub/c.jsonl", "tokens d/t.any"));
  EXPECT_THAT(error_of([&] { find(path("empty")); }), HasSubstr("holds no data (0 files)"));
}

TEST_F(InputFilesTest, PatternsAndLists) {
  EXPECT_THAT(find(path("d/*.txt")), ElementsAre("text d/a,b.txt", "text d/a.txt", "text d/b.txt"));
  EXPECT_THAT(find(path("d/[ab].txt")), ElementsAre("text d/a.txt", "text d/b.txt"));
  EXPECT_THAT(find(path("*/*/c.json?")), ElementsAre("json d/sub/c.jsonl"));
  EXPECT_THAT(find(path("d/m.*")), ElementsAre("megatron d/m"));
  EXPECT_THAT(find(path("d/a,b.txt")), ElementsAre("text d/a,b.txt"));
  EXPECT_THAT(find(path("d/b.txt") + "," + path("d/a.txt") + "," + path("d/m")),
              ElementsAre("text d/b.txt", "text d/a.txt", "megatron d/m"));
  EXPECT_THAT(error_of([&] { find(path("d/*.none")); }), HasSubstr("no file matches"));
  EXPECT_THAT(error_of([&] { find(path("none/*.txt")); }), HasSubstr("no file matches"));
  EXPECT_THAT(error_of([&] { find(path("d/a.txt") + "," + path("none.txt")); }), HasSubstr("none.txt"));
  EXPECT_THAT(error_of([&] { find(path("none.txt")); }), HasSubstr("none.txt"));
}

// What was looked for, and which of two files is missing.
TEST_F(InputFilesTest, SaysWhatIsMissing) {
  EXPECT_THAT(error_of([&] { find(path("d/none")); }),
              AllOf(HasSubstr("d/none', and no '"), HasSubstr("d/none.idx' of a Megatron dataset")));
  files_.remove(path("d/m.idx"));
  EXPECT_THAT(error_of([&] { find(path("d/m")); }),
              AllOf(HasSubstr("d/m.bin' has no index"), HasSubstr("d/m.idx' beside it")));
  const auto open = [&](const std::string& name) {
    return error_of([&] { open_token_input(files_, find_input_files(files_, path(name)).front(), 10); });
  };
  EXPECT_THAT(open("d/m.bin"), AllOf(HasSubstr("d/m.bin'"), HasSubstr("d/m.idx' beside it")));
  EXPECT_THAT(open("d/m.idx"), HasSubstr("d/m.idx"));
  EXPECT_THAT(open("d/none.bin"), HasSubstr("d/none.bin"));
}

TEST_F(InputFilesTest, KindsByFirstBytesAndName) {
  EXPECT_THAT(find(path("d/m.bin")), ElementsAre("megatron d/m"));
  EXPECT_THAT(find(path("d/m.idx")), ElementsAre("megatron d/m"));
  EXPECT_THAT(find(path("d/picture.png")), ElementsAre("unknown d/picture.png"));
  EXPECT_THAT(find(path("d/t.any")), ElementsAre("tokens d/t.any"));
}

TEST(InputFiles, AnOutputIsKnownAmongInputs) {
  const std::vector<InputFile> inputs = {{"a/b.txt", InputKind::text}, {"./c.txt", InputKind::text}};
  EXPECT_TRUE(is_one_of(inputs, "a/b.txt"));
  EXPECT_TRUE(is_one_of(inputs, "a/../a//b.txt"));
  EXPECT_TRUE(is_one_of(inputs, "c.txt"));
  EXPECT_FALSE(is_one_of(inputs, "b.txt"));
  EXPECT_FALSE(is_one_of({}, "c.txt"));
}

}  // namespace
}  // namespace athanor
