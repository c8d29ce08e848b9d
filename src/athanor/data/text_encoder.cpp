#include "athanor/data/text_encoder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr size_t told_bad_lines = 5;

}  // namespace

TextEncoder::TextEncoder(FileEnvironment& files, std::vector<InputFile> inputs,
                         std::shared_ptr<const Tokenizer> tokenizer, const TextOptions& options,
                         TextPlace begin)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      records_(*tokenizer_, options.chat, options.field),
      blocks_(files, std::move(inputs), tokenizer_, options.separator, options.block_bytes, begin) {
  if (!tokenizer_->end_of_text()) {
    throw_user_error("the tokenizer names no end-of-text token, which closes each document",
                     "name one in its tokenizer_config.json (eos_token), or take another tokenizer");
  }
  end_of_text_ = *tokenizer_->end_of_text();
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  for (int i = 0; i < threads; ++i) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::exception& error) {  // of memory or threads there are no more
      if (threads_.empty())
        throw_user_error(fmt::format("no thread can be started: {}", error.what()),
                         "raise the limits on processes and memory (ulimit -u, ulimit -v)");
      break;  // fewer do as well
    }
  }
}

TextEncoder::~TextEncoder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TextEncoder::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Task* task = nullptr;
    changed_.wait(lock, [&] {
      const auto next =
          std::find_if(tasks_.begin(), tasks_.end(), [](const Task& one) { return !one.begun; });
      task = next == tasks_.end() ? nullptr : &*next;
      return stop_ || task != nullptr;
    });
    if (stop_) return;
    task->begun = true;
    lock.unlock();
    try {
      task->encoded = encode(task->text);
    } catch (...) {
      task->error = std::current_exception();
    }
    task->text = TextBlock();
    lock.lock();
    task->done = true;
    changed_.notify_all();
  }
}

// Keeps every thread busy, and memory bounded: so many blocks are on their way at most.
void TextEncoder::read_ahead() {
  while (!exhausted_ && tasks_.size() <= 2 * threads_.size()) {
    Task task;
    try {
      auto block = blocks_.next();
      exhausted_ = !block;
      if (exhausted_) return;
      task.text = std::move(*block);
    } catch (...) {
      task.error = std::current_exception();  // comes out behind what was read before
      task.begun = task.done = exhausted_ = true;
    }
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
}

std::optional<EncodedBlock> TextEncoder::next() {
  read_ahead();
  if (tasks_.empty()) return std::nullopt;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.front().done; });
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  lock.unlock();
  if (task.error) std::rethrow_exception(std::exchange(task.error, nullptr));
  return std::move(task.encoded);
}

EncodedBlock TextEncoder::encode(const TextBlock& block) const {
  EncodedBlock out;
  out.input_bytes = block.input_bytes;
  out.after = block.after;
  if (block.kind == InputKind::text)
    encode_text(block, out);
  else
    encode_lines(block, out);
  return out;
}

void TextEncoder::end_document(bool learned, EncodedBlock& out) const {
  out.ids.push_back(end_of_text_);
  out.stretches.push_back({1, learned, true});
}

void TextEncoder::encode_text(const TextBlock& block, EncodedBlock& out) const {
  for (const TextBlock::Stretch& stretch : block.stretches) {
    const std::string_view text =
        std::string_view(block.bytes).substr(stretch.begin, stretch.end - stretch.begin);
    const size_t before = out.ids.size();
    tokenizer_->encode(text, out.ids, {.continuation = stretch.continued});
    out.stretches.push_back({.tokens = out.ids.size() - before});
    if (stretch.ends_document && (stretch.continued || !text.empty())) end_document(true, out);
  }
}

void TextEncoder::encode_lines(const TextBlock& block, EncodedBlock& out) const {
  const std::string_view bytes = block.bytes;
  int64_t number = block.first_line;
  for (size_t begin = 0; begin < bytes.size(); ++number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string_view line = bytes.substr(begin, end - begin);
    begin = end + 1;
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TextRecord record;
    try {
      record = records_.read(line);
    } catch (const Error& error) {
      const std::string told = fmt::format("{}:{}: {}", block.path, number, error.message());
      if (!options_.skip_bad) throw_user_error(told, error.hint());
      if (out.bad_lines.size() < told_bad_lines) out.bad_lines.push_back(told);
      ++out.bad_line_count;
      continue;
    }
    for (size_t i = 0; i < record.parts.size(); ++i) {
      const TextPart& part = record.parts[i];
      const size_t before = out.ids.size();
      tokenizer_->encode(part.text, out.ids, {.special_tokens = part.special, .continuation = i > 0});
      out.stretches.push_back({.tokens = out.ids.size() - before, .learned = part.learned});
    }
    if (!record.parts.empty()) end_document(record.end_learned, out);
  }
}

}  // namespace athanor
