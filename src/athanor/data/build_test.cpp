#include "athanor/data/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "athanor/base/error_test_support.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/inspect.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> bytes() {
  static const auto tokenizer = open_tokenizer(system_files(), "bytes");
  return tokenizer;
}

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.token_count()));
  source.read(0, ids);
  return ids;
}

std::vector<std::string> documents_of(const TokenSource& source) {
  std::vector<std::string> documents;
  for (int64_t number = 0; number < source.document_count(); ++number) {
    const Document document = source.document(number);
    std::vector<int32_t> ids(static_cast<size_t>(document.end - document.begin));
    source.read(document.begin, ids);
    EXPECT_EQ(ids.back(), 256);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 1);
    documents.push_back(bytes()->decode(ids, {.special_tokens = false}));
  }
  return documents;
}

class BuildTest : public testing::Test {
 protected:
  BuildTest() {
    std::string text, lines;
    for (int i = 0; i < 15'000; ++i) text += fmt::format("line {}\n{}", i, i % 250 == 0 ? "%\n" : "");
    for (int i = 0; i < 1000; ++i)
      lines += fmt::format("{{\"prompt\": \"what {}\", \"answer\": \"that {}\"}}\n", i, i);
    write_file_atomically(files_, "a.txt", text);  // about 166 KB
    write_file_atomically(files_, "b.jsonl", lines);
    options_.inputs = {{"a.txt", InputKind::text}, {"b.jsonl", InputKind::json_lines}};
    options_.output = "out";
    options_.tokenizer = bytes();
    options_.text.separator = "%";
    options_.segment_bytes = 1 << 15;
    options_.text.block_bytes = 1 << 13;
  }
  BuildReport build(FileEnvironment& files) {
    return build_dataset(files, options_, [](const auto&) {});
  }
  BuildReport build() { return build(files_); }
  std::vector<std::string> leftovers() {
    const std::string folder = work_folder(options_);
    return files_.exists(folder) ? files_.list(folder) : std::vector<std::string>();
  }

  MemoryFileEnvironment files_;
  BuildOptions options_;
};

TEST_F(BuildTest, DocumentsOfAllInputsInOrder) {
  int64_t last = 0;
  const BuildReport report = build_dataset(files_, options_, [&](const BuildProgress& progress) {
    EXPECT_GE(progress.bytes, last);
    EXPECT_LE(progress.bytes, progress.total_bytes);
    last = progress.bytes;
  });
  EXPECT_EQ(last, report.text_bytes);
  ASSERT_EQ(report.parts.size(), 1U);
  EXPECT_EQ(report.parts[0].path, "out.tokens");
  EXPECT_EQ(report.documents, 61 + 1000);
  EXPECT_EQ(report.tokenizer_path, "out.tokenizer.json");
  const auto file = TokenFile::open(files_, "out.tokens");
  EXPECT_EQ(file->document_count(), 1061);
  EXPECT_EQ(file->token_count(), report.tokens);
  const auto documents = documents_of(*file);
  EXPECT_EQ(documents[0], "line 0\n");
  EXPECT_TRUE(documents[1].starts_with("line 1\n"));
  EXPECT_TRUE(documents[1].ends_with("line 250\n"));
  EXPECT_EQ(documents[61].substr(0, 5), "what ");
  EXPECT_EQ(documents.back(), "what 999that 999");
  const Document answer = file->document(1060);
  EXPECT_EQ(file->unlearned_in({answer.begin, answer.end}), (TokenRange{answer.begin, answer.begin + 8}));
  EXPECT_TRUE(leftovers().empty());
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("'out.tokens' exists already"));
  options_.overwrite = true;
  const std::string before = read_file(files_, "out.tokens", 1 << 30);
  options_.text.threads = 3;
  options_.segment_bytes = 3 << 15;
  options_.text.block_bytes = 1 << 12;
  build();
  EXPECT_TRUE(read_file(files_, "out.tokens", 1 << 30) == before);
}

// Stopped at every kind of place, by a write that fails; then built to the end.
TEST_F(BuildTest, AKilledBuildGoesOnWithTheSameBytes) {
  build();
  const std::string whole = read_file(files_, "out.tokens", 1 << 30);
  files_.remove("out.tokens");
  int64_t resumed = 0;
  for (int64_t stop = 1; stop < 400; stop += 7) {
    FaultyFileEnvironment faulty(files_, {.kill_at = stop});
    bool finished = false;
    try {
      resumed = std::max(resumed, build(faulty).resumed_bytes);
      finished = true;
    } catch (const ProcessKilled&) {
    }
    if (finished) break;
    if (files_.exists("out.tokens")) {
      EXPECT_TRUE(read_file(files_, "out.tokens", 1 << 30) == whole);
    }
  }
  if (!leftovers().empty()) resumed = std::max(resumed, build().resumed_bytes);
  EXPECT_GT(resumed, int64_t{1} << 15);
  EXPECT_TRUE(read_file(files_, "out.tokens", 1 << 30) == whole);
  EXPECT_TRUE(leftovers().empty());
  for (const std::string& name : files_.list(".")) EXPECT_FALSE(is_temporary_name(name)) << name;
}

// Stopped when all text is encoded, while the files that stay are written.
TEST_F(BuildTest, ABuildThatIsStoppedWhileItWritesLeavesNoPartOfAFile) {
  write_file_atomically(files_, "other.tokens.tmp-1-0", "of another build");
  std::vector<int64_t> written;
  const auto stop = [&](const BuildProgress& progress) {
    if (progress.written_tokens == 0) return;
    written.push_back(progress.written_tokens);
    if (written.size() == 3) throw_user_error("stop", "go on");
  };
  EXPECT_THAT(error_of([&] { build_dataset(files_, options_, stop); }), HasSubstr("stop"));
  EXPECT_FALSE(files_.exists("out.tokens"));
  for (const std::string& name : files_.list("."))
    EXPECT_TRUE(!is_temporary_name(name) || name == "other.tokens.tmp-1-0") << name;
  const BuildReport report = build_dataset(files_, options_, stop);
  EXPECT_EQ(report.resumed_bytes, report.text_bytes);
  EXPECT_EQ(written.back(), report.tokens);
  EXPECT_TRUE(std::is_sorted(written.begin() + 3, written.end()));
  EXPECT_TRUE(files_.exists("other.tokens.tmp-1-0"));
}

TEST_F(BuildTest, OtherTextsOrOptionsBeginAnew) {
  const auto interrupted = [&] {
    return error_of([&] {
      build_dataset(files_, options_, [](const BuildProgress& progress) {
        if (progress.bytes > 2 << 15) throw_user_error("stop", "go on");
      });
    });
  };
  interrupted();
  EXPECT_FALSE(leftovers().empty());
  options_.text.separator = "line 7";
  const BuildReport report = build();
  EXPECT_EQ(report.resumed_bytes, 0);
  EXPECT_EQ(documents_of(*TokenFile::open(files_, "out.tokens"))[1].substr(0, 7), "line 8\n");
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(BuildTest, SplitIsByDocument) {
  build();
  const auto whole = documents_of(*TokenFile::open(files_, "out.tokens"));
  options_.split = {.validation = 0.1, .test = 0.05, .seed = 4};
  options_.output = "parts";
  const BuildReport report = build();
  ASSERT_EQ(report.parts.size(), 3U);
  std::map<DocumentSplit::Part, std::vector<std::string>> expected;
  for (size_t i = 0; i < whole.size(); ++i)
    expected[options_.split.part_of(static_cast<int64_t>(i))].push_back(whole[i]);
  const auto read = [&](const char* path) { return documents_of(*TokenFile::open(files_, path)); };
  EXPECT_TRUE(read("parts.train.tokens") == expected[DocumentSplit::Part::train]);
  EXPECT_TRUE(read("parts.validation.tokens") == expected[DocumentSplit::Part::validation]);
  EXPECT_TRUE(read("parts.test.tokens") == expected[DocumentSplit::Part::test]);
  EXPECT_EQ(report.parts[1].documents,
            static_cast<int64_t>(expected[DocumentSplit::Part::validation].size()));
  // The same split as that of the whole file at run time.
  const DocumentSubset subset(TokenFile::open(files_, "out.tokens"), [&](int64_t number) {
    return options_.split.part_of(number) == DocumentSplit::Part::test;
  });
  EXPECT_EQ(all_of(subset), all_of(*TokenFile::open(files_, "parts.test.tokens")));

  write_file_atomically(files_, "one.txt", "one document");
  options_.inputs = {{"one.txt", InputKind::text}};
  options_.output = "one";
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("of 1 document none falls into"));
}

TEST_F(BuildTest, MegatronFormat) {
  options_.format = DatasetFormat::megatron;
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("not learned"));
  options_.inputs.pop_back();
  build();
  const auto dataset = MegatronDataset::open(files_, "out", 257);
  options_.format = DatasetFormat::athanor;
  build();
  const auto file = TokenFile::open(files_, "out.tokens");
  EXPECT_EQ(dataset->document_count(), 61);
  EXPECT_EQ(all_of(*dataset), all_of(*file));
  for (int64_t number = 0; number < 61; ++number)
    EXPECT_EQ(dataset->document(number).begin, file->document(number).begin);
}

TEST_F(BuildTest, BadLinesAndEmptyTexts) {
  write_file_atomically(files_, "bad.jsonl", "{\"text\": \"a\"}\nbad\n{\"text\": \"b\"}\n");
  write_file_atomically(files_, "empty.txt", "");
  options_.inputs = {{"empty.txt", InputKind::text},
                     {"bad.jsonl", InputKind::json_lines},
                     {"empty.txt", InputKind::unknown}};
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("bad.jsonl:2: "));
  EXPECT_THAT(leftovers(), testing::IsEmpty());
  options_.text.skip_bad = true;
  const BuildReport report = build();
  EXPECT_EQ(report.bad_line_count, 1);
  EXPECT_THAT(report.bad_lines, ElementsAre(HasSubstr("bad.jsonl:2: ")));
  EXPECT_THAT(documents_of(*TokenFile::open(files_, "out.tokens")), ElementsAre("a", "b"));
  options_.inputs = {{"empty.txt", InputKind::text}};
  options_.output = "none";
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("hold no document (0 bytes in 1 file)"));
  EXPECT_THAT(leftovers(), testing::IsEmpty());
  options_.inputs = {{"out.tokens", InputKind::tokens}};
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("holds tokens already"));
}

TEST_F(BuildTest, ANulEndsNoLine) {
  options_.inputs = {{"bad.jsonl", InputKind::json_lines}};
  // Behind the NUL would be a document that nobody misses.
  write_file_atomically(files_, "bad.jsonl", std::string("{\"text\": \"a\"}\0{\"text\": \"b\"}\n", 29));
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("bad.jsonl:1: this is no JSON: it has a NUL byte"));
}

TEST_F(BuildTest, FilesOfOthersStayAsTheyAre) {
  write_file_atomically(files_, "out.tokenizer.json", "mine");
  options_.tokenizer = open_tokenizer(system_files(), ATHANOR_SOURCE_DIR "/tests/data/gpt2");
  options_.overwrite = true;
  options_.inputs = {{"out.tokenizer.json", InputKind::unknown}};
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("'out.tokenizer.json' is both"));
  options_.inputs = {{"a.txt", InputKind::text}};
  options_.overwrite = false;
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("'out.tokenizer.json' exists already"));
  EXPECT_EQ(read_file(files_, "out.tokenizer.json", 100), "mine");
  EXPECT_FALSE(files_.exists("out.tokens"));
  // One that gives the same ids stays, however it is written.
  options_.tokenizer->save(files_, "out.tokenizer.json");
  const std::string own = read_file(files_, "out.tokenizer.json", 1 << 28) + "\n";
  write_file_atomically(files_, "out.tokenizer.json", own);
  EXPECT_EQ(build().tokenizer_path, "out.tokenizer.json");
  EXPECT_EQ(read_file(files_, "out.tokenizer.json", 1 << 28), own);
}

TEST_F(BuildTest, AStoppedBuildWritesOverItsOwnOutputsOnly) {
  FaultyFileEnvironment faulty(files_, {.kill_at = 30});
  EXPECT_THROW(build(faulty), ProcessKilled);
  EXPECT_FALSE(leftovers().empty());
  write_file_atomically(files_, "out.bin", "mine");
  options_.format = DatasetFormat::megatron;
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("'out.bin' exists already"));
  EXPECT_EQ(read_file(files_, "out.bin", 100), "mine");
}

TEST_F(BuildTest, APartWithoutDocumentIsRefusedBeforeAnyIsWritten) {
  write_file_atomically(files_, "one.txt", "a single document");
  options_.inputs = {{"one.txt", InputKind::text}};
  options_.split = {.validation = 1e-9};
  EXPECT_THAT(error_of([&] { build(); }), HasSubstr("of 1 document none falls into 'out.validation'"));
  EXPECT_FALSE(files_.exists("out.train.tokens"));
}

TEST_F(BuildTest, InspectionReadsItAll) {
  build();
  const Inspection seen = inspect(files_, {"out.tokens", InputKind::tokens}, bytes(), 2);
  EXPECT_EQ(seen.documents, 1061);
  EXPECT_EQ(seen.damage, "");
  EXPECT_EQ(seen.largest_id, 256);
  EXPECT_EQ(seen.smallest_id, '\n');
  EXPECT_EQ(seen.vocabulary, 257);
  EXPECT_GT(seen.unlearned_tokens, 6000);
  EXPECT_EQ(seen.lengths[0], 8);  // "line 0\n" and end of text
  ASSERT_EQ(seen.first_documents.size(), 2U);
  EXPECT_EQ(seen.first_documents[0], "line 0\n<|endoftext|>");
  EXPECT_TRUE(seen.first_documents[1].ends_with(" ..."));
  EXPECT_THAT(describe(seen), HasSubstr("version 2"));
  EXPECT_EQ(seen.tokenizer, bytes()->identity());
  const auto gpt2 = open_tokenizer(system_files(), ATHANOR_SOURCE_DIR "/tests/data/gpt2");
  EXPECT_THAT(error_of([&] { inspect(files_, {"out.tokens", InputKind::tokens}, gpt2, 2); }),
              HasSubstr("'out.tokens' was made with another tokenizer"));
  std::string damaged = read_file(files_, "out.tokens", 1 << 30);
  damaged[130'000] ^= 1;
  write_file_atomically(files_, "bad.tokens", damaged);
  const Inspection bad = inspect(files_, {"bad.tokens", InputKind::tokens}, nullptr, 2);
  EXPECT_THAT(bad.damage, HasSubstr("checksum of block 1"));
  EXPECT_THAT(describe(bad), HasSubstr("damaged     token file 'bad.tokens'"));
}

}  // namespace
}  // namespace athanor
