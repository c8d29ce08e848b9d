#include "athanor/store/redis_store.h"

#include <hiredis.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/store/store_protocol.h"

namespace athanor {
namespace {

// KEYS: the value, and a stream with one entry once there is a value, which readers can wait for.
constexpr const char* set_script =
    "redis.call('SET', KEYS[1], ARGV[1], 'EX', 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return ARGV[1]";
constexpr const char* add_script =
    "local sum = redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('EXPIRE', KEYS[1], 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return tostring(sum)";
constexpr const char* compare_script =
    "local old = redis.call('GET', KEYS[1]) "
    "if old and old ~= ARGV[1] then return old end "
    "if not old and ARGV[1] ~= '' then return '' end "
    "redis.call('SET', KEYS[1], ARGV[2], 'EX', 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return ARGV[2]";
// KEYS: a hash by member, and the stream. ARGV: members, the first one, values. Returns who was another.
constexpr const char* gather_script =
    "for i = 3, #ARGV do local old = redis.call('HGET', KEYS[1], ARGV[2] + i - 3) "
    "if old and old ~= ARGV[i] then return ARGV[2] + i - 3 end end "
    "for i = 3, #ARGV do redis.call('HSET', KEYS[1], ARGV[2] + i - 3, ARGV[i]) end "
    "redis.call('EXPIRE', KEYS[1], 604800) "
    "if redis.call('HLEN', KEYS[1]) == tonumber(ARGV[1]) and redis.call('EXISTS', KEYS[2]) == 0 then "
    "redis.call('XADD', KEYS[2], '*', 'v', '1') redis.call('EXPIRE', KEYS[2], 604800) end return -1";

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

timeval time_of(int64_t nanoseconds) {
  return {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000 / 1000};
}

std::string text_of(const redisReply& reply) {
  return {reply.str, reply.len};
}

class RedisStore final : public Store {
 public:
  explicit RedisStore(StoreOptions options) : options_(std::move(options)), name_(to_text(options_.address)) {
    const Secret::Proof code = options_.secret.prove({bytes_of("athanor redis 1")});
    prefix_ = "athanor/";
    for (size_t i = 0; i < 8; ++i) prefix_ += fmt::format("{:02x}", static_cast<unsigned>(code[i]));
    prefix_ += '/';
    const std::lock_guard lock(mutex_);
    connect();
  }

  void set(std::string_view key, std::string_view value) override {
    check(key, value);
    run_script(set_script, key, {std::string(value)});
  }

  std::optional<std::string> get(std::string_view key) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    return get_locked(key);
  }

  std::optional<std::string> wait(std::string_view key, int64_t timeout_ns) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    const int64_t deadline = monotonic_ns() + timeout_ns;
    while (true) {
      auto value = get_locked(key);
      if (value || monotonic_ns() >= deadline) return value;
      await_stream(key, deadline);
    }
  }

  int64_t add(std::string_view key, int64_t amount) override {
    check(key, {});
    return std::stoll(text_of(*run_script(add_script, key, {std::to_string(amount)})));
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    check(key, desired);
    return text_of(*run_script(compare_script, key, {std::string(expected), std::string(desired)}));
  }

  bool remove(std::string_view key) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    return command({"DEL", value_key(key), stream_key(key)}, 0)->integer > 0;
  }

  Gathered gather(const Gathering& gathering, int64_t timeout_ns) override {
    check(gathering.key, {});
    const int64_t deadline = monotonic_ns() + timeout_ns;
    if (!gathering.values.empty()) {
      std::vector<std::string> arguments = {std::to_string(gathering.members),
                                            std::to_string(gathering.first)};
      arguments.insert(arguments.end(), gathering.values.begin(), gathering.values.end());
      const Reply reply = run_script(gather_script, gathering.key, arguments);
      if (reply->integer >= 0)
        throw_user_error(
            fmt::format("the job's store at {} refuses '{}': number {} has come before, and was "
                        "another",
                        name_, gathering.key, reply->integer));
    }
    Gathered gathered;
    if (gathering.wanted.empty()) return gathered;
    const std::lock_guard lock(mutex_);
    await_stream(gathering.key, deadline);
    std::vector<uint32_t> missing;
    for (const MemberRange& range : gathering.wanted) {
      std::vector<std::string> request = {"HMGET", value_key(gathering.key)};
      for (uint32_t i = 0; i < range.count; ++i)
        request.push_back(std::to_string(range.begin + range.stride * i));
      const Reply reply = command(request, 0);
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != range.count) lose("does not answer");
      std::vector<StorePiece> values;
      for (uint32_t i = 0; i < range.count; ++i) {
        if (reply->element[i]->type == REDIS_REPLY_NIL)
          missing.push_back(range.begin + range.stride * i);
        else
          values.push_back(std::make_shared<const std::string>(text_of(*reply->element[i])));
      }
      if (auto list = decode_values(encode_values(values))) gathered.values.push_back(std::move(*list));
    }
    if (missing.empty()) return gathered;
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    gathered.values.clear();
    gathered.missing_count = static_cast<uint32_t>(missing.size());
    missing.resize(std::min<size_t>(missing.size(), 1000));
    gathered.missing = std::move(missing);
    return gathered;
  }

 private:
  static void check(std::string_view key, std::string_view value) {
    check_request({StoreOperation::set, 0, 0, std::string(key), std::string(value)});
  }

  [[noreturn]] void lose(const std::string& what) const {
    throw Error(ErrorKind::restart_worker, fmt::format("Redis at {}: {}", name_, what),
                "is it running and reachable from here?");
  }

  // Both keys of a script on one node of a cluster: what stands in braces decides.
  std::string value_key(std::string_view key) const { return fmt::format("{}{{{}}}", prefix_, key); }
  std::string stream_key(std::string_view key) const { return value_key(key) + ":there"; }

  void connect() {
    const int64_t deadline = monotonic_ns() + options_.connect_timeout_ns;
    while (true) {
      const int64_t left = std::max<int64_t>(1'000'000, deadline - monotonic_ns());
      context_.reset(
          redisConnectWithTimeout(options_.address.host.c_str(), options_.address.port, time_of(left)));
      if (context_ && context_->err == 0) break;
      const std::string problem = context_ ? context_->errstr : "no memory";
      if (monotonic_ns() + 100'000'000 >= deadline)
        lose(fmt::format("no connection within {:.1f} s: {}", seconds_of(options_.connect_timeout_ns),
                         problem));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const Reply reply = raw_command({"PING"}, 0);
    if (reply->type == REDIS_REPLY_ERROR && text_of(*reply).starts_with("NOAUTH") &&
        raw_command({"AUTH", options_.secret.bytes()}, 0)->type == REDIS_REPLY_ERROR)
      throw_user_error(fmt::format("Redis at {} has another password than the job's secret", name_));
  }

  // A connection that was lost is made anew for the next command; this one's fate is not known.
  Reply raw_command(const std::vector<std::string>& words, int64_t waits_ns) {
    redisSetTimeout(context_.get(), time_of(waits_ns + options_.answer_timeout_ns));
    std::vector<const char*> pointers;
    std::vector<size_t> lengths;
    for (const std::string& word : words) {
      pointers.push_back(word.data());
      lengths.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(
        redisCommandArgv(context_.get(), static_cast<int>(words.size()), pointers.data(), lengths.data())));
    if (!reply) {
      const std::string problem = context_->errstr;
      context_.reset();
      lose(problem);
    }
    return reply;
  }

  Reply command(const std::vector<std::string>& words, int64_t waits_ns) {
    if (!context_) connect();
    Reply reply = raw_command(words, waits_ns);
    if (reply->type == REDIS_REPLY_ERROR) lose(text_of(*reply));
    return reply;
  }

  Reply run_script(const char* script, std::string_view key, const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"EVAL", script, "2", value_key(key), stream_key(key)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const std::lock_guard lock(mutex_);
    return command(words, 0);
  }

  std::optional<std::string> get_locked(std::string_view key) {
    const Reply reply = command({"GET", value_key(key)}, 0);
    if (reply->type != REDIS_REPLY_STRING) return std::nullopt;
    return text_of(*reply);
  }

  void await_stream(std::string_view key, int64_t deadline_ns) {
    const int64_t left = deadline_ns - monotonic_ns();
    if (left <= 0) return;
    const int64_t milliseconds = (left + 999'999) / 1'000'000;  // 0 would be for ever
    command({"XREAD", "BLOCK", std::to_string(milliseconds), "STREAMS", stream_key(key), "0"}, left);
  }

  const StoreOptions options_;
  const std::string name_;
  std::string prefix_;
  std::mutex mutex_;  // guards what follows
  std::unique_ptr<redisContext, FreeContext> context_;
};

}  // namespace

std::unique_ptr<Store> connect_redis(const StoreOptions& options) {
  return std::make_unique<RedisStore>(options);
}

}  // namespace athanor
