#include "athanor/data/build.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/text_files.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

constexpr size_t piece_tokens = 65'536;
constexpr int64_t largest_note = 1 << 24;
constexpr size_t told_bad_lines = 5;

// What is known behind a segment.
struct SegmentNote {
  TextPlace after;
  int64_t bytes = 0;      // of text, from the beginning
  int64_t tokens = 0;     // of this segment
  int64_t documents = 0;  // that ended in it
  int64_t unlearned = 0;
  int64_t bad_lines = 0;
};

std::string to_text(const SegmentNote& note) {
  return fmt::format("segment 1 {} {} {} {} {} {} {} {} {} {}\n", note.after.file, note.after.offset,
                     note.after.line, +note.after.at_line_start, +note.after.document_open, note.bytes,
                     note.tokens, note.documents, note.unlearned, note.bad_lines);
}

std::optional<SegmentNote> parse_note(const std::string& text) {
  SegmentNote note;
  std::istringstream stream(text);
  std::string word, version;
  stream >> word >> version >> note.after.file >> note.after.offset >> note.after.line >>
      note.after.at_line_start >> note.after.document_open >> note.bytes >> note.tokens >> note.documents >>
      note.unlearned >> note.bad_lines;
  if (!stream || to_text(note) != text) return std::nullopt;
  return note;
}

class Build {
 public:
  Build(FileEnvironment& files, const BuildOptions& options,
        const std::function<void(const BuildProgress&)>& progress)
      : files_(files), options_(options), progress_(progress), inputs_(options.inputs) {
    validate(options.split);
    if (inputs_.empty()) throw_user_error("there is no text to build from", "name files or folders");
    for (InputFile& input : inputs_) {
      if (input.kind == InputKind::unknown) input.kind = InputKind::text;
      if (input.kind != InputKind::text && input.kind != InputKind::json_lines) {
        throw_user_error(fmt::format("'{}' holds tokens already", input.path),
                         "a dataset is built from texts and JSON lines");
      }
      total_bytes_ += files.open(input.path)->size();
    }
  }

  BuildReport run() {
    refuse_inputs_as_outputs();
    refuse_existing();
    files_.make_directories(work_folder(options_));
    const auto lock = options_.lock ? options_.lock(work_folder(options_)) : nullptr;
    resume();
    try {
      encode();
      count_documents();
    } catch (const Error&) {
      if (!is_worth_going_on()) try_to_remove_work();
      throw;
    }
    write_parts();
    write_tokenizer();
    remove_work();
    return std::move(report_);
  }

 private:
  std::string work_path(const std::string& what) const { return join_path(work_folder(options_), what); }
  std::string segment_path(size_t number) const { return work_path(fmt::format("{:06}.tokens", number)); }
  std::string note_path(size_t number) const { return work_path(fmt::format("{:06}.note", number)); }

  // Everything that decides the tokens: a build goes on only where all of it is the same. The outputs too,
  // since it may write over what is there under these names.
  std::string plan() const {
    std::string text =
        fmt::format("plan 1\ntokenizer {:08x}\nseparator {}\nfield {}\nchat {}\nskip_bad {}\nsegment {}\n",
                    options_.tokenizer->identity(), options_.text.separator, options_.text.field,
                    static_cast<int>(options_.text.chat), options_.text.skip_bad, options_.segment_bytes);
    for (const InputFile& input : inputs_) {
      const auto status = files_.status(input.path);
      text += fmt::format("input {} {} {} {}\n", static_cast<int>(input.kind), status ? status->size : -1,
                          status ? status->modified_ns : -1, input.path);
    }
    for (const std::string& path : output_paths()) text += fmt::format("output {}\n", path);
    return text;
  }

  bool is_begun() const {
    const std::string path = work_path("plan"), wanted = plan();
    const auto size = static_cast<int64_t>(wanted.size());  // of many files above any limit
    const auto status = files_.status(path);
    return status && status->size == size && read_file(files_, path, size) == wanted;
  }

  bool has_split() const { return options_.split.validation > 0 || options_.split.test > 0; }

  std::vector<std::pair<DocumentSplit::Part, std::string>> parts() const {
    if (!has_split()) return {{DocumentSplit::Part::train, options_.output}};
    std::vector<std::pair<DocumentSplit::Part, std::string>> list = {
        {DocumentSplit::Part::train, options_.output + ".train"}};
    if (options_.split.validation > 0)
      list.emplace_back(DocumentSplit::Part::validation, options_.output + ".validation");
    if (options_.split.test > 0) list.emplace_back(DocumentSplit::Part::test, options_.output + ".test");
    return list;
  }

  std::vector<std::string> output_paths() const {
    std::vector<std::string> paths;
    for (const auto& [part, prefix] : parts()) {
      if (options_.format == DatasetFormat::megatron) {
        paths.push_back(prefix + ".bin");
        paths.push_back(prefix + ".idx");
      } else {
        paths.push_back(prefix + ".tokens");
      }
    }
    paths.push_back(tokenizer_path());
    return paths;
  }

  void refuse_inputs_as_outputs() const {
    for (const std::string& output : output_paths()) {
      if (!is_one_of(inputs_, output)) continue;
      throw_user_error(fmt::format("'{}' is both a text to read and a file to write", output),
                       "choose another output");
    }
  }

  void refuse_existing() const {
    // What a build that was stopped has written, it may write again.
    if (options_.overwrite || is_begun()) return;
    for (const std::string& path : output_paths()) {
      if (!files_.exists(path) || (path == tokenizer_path() && has_tokenizer_already())) continue;
      throw_user_error(fmt::format("'{}' exists already", path), "choose another output, or --overwrite");
    }
  }

  // Finds the segments of a build of the same texts that did not end.
  void resume() {
    if (is_begun()) {
      for (size_t number = 0;; ++number) {
        const auto note = usable_segment(number);
        if (!note) break;
        notes_.push_back(*note);
      }
    }
    remove_segments_from(notes_.size());
    remove_temporaries();
    if (!notes_.empty()) report_.resumed_bytes = notes_.back().bytes;
    write_file_atomically(files_, work_path("plan"), plan());
  }

  std::optional<SegmentNote> usable_segment(size_t number) const {
    if (!files_.exists(segment_path(number)) || !files_.exists(note_path(number))) return std::nullopt;
    try {
      auto note = parse_note(read_file(files_, note_path(number), largest_note));
      const auto segment = TokenFile::open(files_, segment_path(number));
      segment->verify();
      if (note && segment->token_count() == note->tokens) return note;
    } catch (const Error&) {
      return std::nullopt;  // it is made again from the text
    }
    return std::nullopt;
  }

  void remove_segments_from(size_t number) {
    for (; files_.exists(segment_path(number)) || files_.exists(note_path(number)); ++number) {
      for (const std::string& path : {note_path(number), segment_path(number)}) {
        if (files_.exists(path)) files_.remove(path);
      }
    }
  }

  void remove_work() {
    remove_segments_from(0);
    remove_temporaries();
    files_.remove(work_path("plan"));
  }

  // Of builds that were killed.
  void remove_temporaries() {
    for (const std::string& name : files_.list(work_folder(options_))) {
      if (is_temporary_name(name)) files_.remove(work_path(name));
    }
    const std::vector<std::string> outputs = output_paths();
    const std::string folder = parent_directory(outputs.front());
    for (const std::string& name : files_.list(folder)) {
      const auto is_left_by = [&](const std::string& path) {
        return is_temporary_name(name, std::string_view(path).substr(path.rfind('/') + 1));
      };
      if (std::any_of(outputs.begin(), outputs.end(), is_left_by)) files_.remove(join_path(folder, name));
    }
  }

  void try_to_remove_work() {
    try {
      remove_work();
    } catch (const Error&) {
      // What is wrong with the disk is told already; the next build removes it.
    }
  }

  bool all_read() const {
    return !notes_.empty() && notes_.back().after.file >= static_cast<int64_t>(inputs_.size());
  }

  void encode() {
    if (all_read()) return;
    TextEncoder encoder(files_, inputs_, options_.tokenizer, options_.text,
                        notes_.empty() ? TextPlace{} : notes_.back().after);
    for (bool more = true; more;) {
      SegmentNote note;
      if (!notes_.empty()) note = {.after = notes_.back().after, .bytes = notes_.back().bytes};
      const std::string path = segment_path(notes_.size());
      write_token_file(files_, path, token_file_options(*options_.tokenizer),
                       [&](TokenFileWriter& writer) { more = fill_segment(encoder, writer, note); });
      if (!more && note.after.file < static_cast<int64_t>(inputs_.size())) {
        note.after = {.file = static_cast<int64_t>(inputs_.size())};  // empty files at the end
      }
      write_file_atomically(files_, note_path(notes_.size()), to_text(note));
      notes_.push_back(note);
    }
  }

  // Returns whether there may be more.
  bool fill_segment(TextEncoder& encoder, TokenFileWriter& writer, SegmentNote& note) {
    const int64_t begin = note.bytes;
    while (note.bytes - begin < options_.segment_bytes) {
      const auto block = encoder.next();
      if (!block) return false;
      write_block(*block, writer);
      note.after = block->after;
      note.bytes += block->input_bytes;
      note.tokens = writer.token_count();
      note.unlearned = writer.unlearned_count();
      for (const auto& stretch : block->stretches) note.documents += stretch.ends_document ? 1 : 0;
      note.bad_lines += block->bad_line_count;
      for (const std::string& line : block->bad_lines) {
        if (report_.bad_lines.size() < told_bad_lines) report_.bad_lines.push_back(line);
      }
      if (note.unlearned > 0 && options_.format == DatasetFormat::megatron) {
        throw_user_error(
            "these texts have tokens that are not learned, for which Megatron's format has no place",
            "use --format athanor");
      }
      tell(note);
    }
    return true;
  }

  void tell(const SegmentNote& note) const {
    BuildProgress now{.bytes = note.bytes,
                      .total_bytes = total_bytes_,
                      .resumed_bytes = report_.resumed_bytes,
                      .tokens = note.tokens,
                      .documents = note.documents};
    for (const SegmentNote& before : notes_) {
      now.tokens += before.tokens;
      now.documents += before.documents;
    }
    progress_(now);
  }

  // Appends the documents of one part, in order.
  template <class Writer>
  void write_documents(DocumentSplit::Part part, Writer& writer, int64_t& documents) {
    int64_t number = 0;  // of the document at hand
    std::vector<int32_t> ids;
    for (size_t i = 0; i < notes_.size(); ++i) {
      const auto segment = TokenFile::open(files_, segment_path(i));
      for (int64_t at = 0; at < segment->document_count(); ++at) {
        const Document document = segment->document(at);
        const bool chosen = options_.split.part_of(number) == part;
        if (chosen) copy(*segment, document, ids, writer);
        // The last document of a segment may go on in the next.
        if (at + 1 == segment->document_count() && notes_[i].after.document_open) continue;
        if (chosen) {
          writer.end_document();
          ++documents;
        }
        ++number;
      }
    }
  }

  template <class Writer>
  void copy(const TokenFile& segment, const Document& document, std::vector<int32_t>& ids, Writer& writer) {
    for (int64_t at = document.begin; at < document.end;) {
      const int64_t end = std::min(document.end, at + static_cast<int64_t>(piece_tokens));
      const TokenRange unlearned = segment.unlearned_in({at, end});
      const bool learned = unlearned.begin > at || unlearned.size() == 0;
      const int64_t until = learned ? unlearned.begin : unlearned.end;
      ids.resize(static_cast<size_t>(until - at));
      segment.read(at, ids);
      if constexpr (std::is_same_v<Writer, TokenFileWriter>)
        writer.append(ids, learned);
      else
        writer.append(ids);
      at = until;
      written_tokens_ += std::ssize(ids);
      progress_({.bytes = total_bytes_,
                 .total_bytes = total_bytes_,
                 .resumed_bytes = report_.resumed_bytes,
                 .tokens = report_.tokens,
                 .documents = report_.documents,
                 .written_tokens = written_tokens_});
    }
  }

  // Fills the report in, and refuses what would be a part without a document before any part is written.
  void count_documents() {
    for (const SegmentNote& note : notes_) {
      report_.tokens += note.tokens;
      report_.documents += note.documents;
      report_.unlearned_tokens += note.unlearned;
      report_.bad_line_count += note.bad_lines;
    }
    report_.text_bytes = total_bytes_;
    if (report_.documents == 0) {
      throw_user_error(fmt::format("the texts hold no document ({} byte{} in {} file{})", total_bytes_,
                                   plural(total_bytes_), inputs_.size(), plural(std::ssize(inputs_))),
                       "give files with text in them");
    }
    for (const auto& [part, prefix] : parts()) {
      bool has_any = false;
      for (int64_t number = 0; number < report_.documents && !has_any; ++number)
        has_any = options_.split.part_of(number) == part;
      if (has_any) continue;
      throw_user_error(fmt::format("of {} document{} none falls into '{}'", report_.documents,
                                   plural(report_.documents), prefix),
                       "give it a larger share, or more documents");
    }
  }

  // Whether there is a segment that a later build may go on from.
  bool is_worth_going_on() const {
    return std::any_of(notes_.begin(), notes_.end(), [](const SegmentNote& note) { return note.tokens > 0; });
  }

  void write_parts() {
    for (const auto& entry : parts()) {
      const DocumentSplit::Part part = entry.first;
      const std::string& prefix = entry.second;
      BuildReport::Part written{.path = prefix};
      const auto fill = [&](auto& writer) {
        write_documents(part, writer, written.documents);
        written.tokens = writer.token_count();
      };
      if (options_.format == DatasetFormat::megatron) {
        write_megatron_dataset(files_, prefix, options_.tokenizer->vocabulary_size(), fill);
      } else {
        written.path += ".tokens";
        write_token_file(files_, written.path, token_file_options(*options_.tokenizer), fill,
                         has_split() ? 0 : report_.tokens);
      }
      report_.parts.push_back(std::move(written));
    }
  }

  std::string tokenizer_path() const { return options_.output + ".tokenizer.json"; }

  // It may be the very file that the tokenizer came from.
  bool has_tokenizer_already() const {
    if (!files_.exists(tokenizer_path())) return false;
    try {
      return open_tokenizer(files_, tokenizer_path())->identity() == options_.tokenizer->identity();
    } catch (const Error&) {
      return false;  // a file of another kind, or a damaged one
    }
  }

  void write_tokenizer() {
    report_.tokenizer_path = tokenizer_path();
    if (!has_tokenizer_already()) options_.tokenizer->save(files_, report_.tokenizer_path);
  }

  FileEnvironment& files_;
  const BuildOptions& options_;
  const std::function<void(const BuildProgress&)>& progress_;
  std::vector<InputFile> inputs_;
  int64_t total_bytes_ = 0;
  std::vector<SegmentNote> notes_;
  int64_t written_tokens_ = 0;
  BuildReport report_;
};

}  // namespace

std::string work_folder(const BuildOptions& options) {
  return options.output + ".building";
}

BuildReport build_dataset(FileEnvironment& files, const BuildOptions& options,
                          const std::function<void(const BuildProgress&)>& progress) {
  return Build(files, options, progress).run();
}

}  // namespace athanor
