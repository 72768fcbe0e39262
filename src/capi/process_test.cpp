// Uses the library in a process that is short of threads, was forked, or calls from several threads. No call
// may end the process or hang, and each refusal has a message. usage: process_test MODEL-FOLDER
#include <grp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "warpwright/warpwright.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // the sanitizers' own memory and threads exceed such limits
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

int failures = 0;
const char* folder = "";

void check(bool condition, const char* what, int line) {
  if (condition) return;
  std::fprintf(stderr, "process_test.cpp:%d: %s (last error: %s)\n", line, what, warpwright_last_error());
  ++failures;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

void check_refused(warpwright_status status, warpwright_status wanted, const char* word, int line) {
  if (status == wanted && std::strstr(warpwright_last_error(), word)) return;
  std::fprintf(stderr, "process_test.cpp:%d: %s, wanted %s; \"%s\" should name \"%s\"\n", line,
               warpwright_status_name(status), warpwright_status_name(wanted), warpwright_last_error(), word);
  ++failures;
}
#define CHECK_REFUSED(call, wanted, word) check_refused(call, wanted, word, __LINE__)

warpwright_status make(std::int32_t threads, warpwright_context** context, warpwright_log log = nullptr,
                       void* data = nullptr) {
  warpwright_context_options o{};
  o.size = sizeof o, o.threads = threads, o.log = log, o.log_data = data;
  return warpwright_context_create(&o, context);
}

warpwright_status normalize(warpwright_context* context) {
  static thread_local float x[4096], out[4096];
  for (int i = 0; i < 4096; ++i) x[i] = static_cast<float>(i % 7);
  warpwright_norm_forward_args a{};
  a.size = sizeof a, a.rows = 64, a.columns = 64, a.x = x, a.out = out, a.eps = 1e-5;
  a.x_dtype = a.parameter_dtype = a.out_dtype = WARPWRIGHT_F32;
  return warpwright_layernorm_forward(context, &a);
}

warpwright_status open(warpwright_context* context, warpwright_encoder** encoder) {
  warpwright_encoder_options o{};
  o.size = sizeof o, o.folder = folder, o.dtype = WARPWRIGHT_F32, o.max_batch_tokens = 64;
  return warpwright_encoder_create(context, &o, encoder);
}

// Runs `work` in a child, which must finish within a minute. Adds the child's failures.
void in_child(const std::function<void()>& work, int line) {
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) {
    alarm(60);
    failures = 0;
    work();
    std::fflush(nullptr);
    _Exit(failures == 0 ? 42 : 1);
  }
  int status = 0;
  waitpid(process, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 42) return;
  std::fprintf(stderr, "process_test.cpp:%d: the child ended with status %d\n", line, status);
  ++failures;
}
#define IN_CHILD(...) in_child(__VA_ARGS__, __LINE__)

void test_counts_of_threads() {
  warpwright_context* context = nullptr;
  for (const std::int32_t threads : {4097, 100000, INT32_MAX, -1, INT32_MIN}) {
    const std::string number = std::to_string(threads);
    CHECK_REFUSED(make(threads, &context), WARPWRIGHT_INVALID_ARGUMENT, number.c_str());
    CHECK_REFUSED(make(threads, &context), WARPWRIGHT_INVALID_ARGUMENT, "options.threads");
    CHECK(!context);
  }
  CHECK(make(2, &context) == WARPWRIGHT_OK);
  for (const std::int32_t threads : {4097, 100000, INT32_MAX, -1, INT32_MIN}) {
    CHECK_REFUSED(warpwright_context_set_threads(context, threads), WARPWRIGHT_INVALID_ARGUMENT, "threads");
    CHECK(normalize(context) == WARPWRIGHT_OK);
  }
  CHECK(warpwright_context_set_threads(context, 0) == WARPWRIGHT_OK);
  CHECK(normalize(context) == WARPWRIGHT_OK);
  warpwright_context_destroy(context);
}

// Runs in a new process with OMP_NUM_THREADS=100000, which OpenMP reads when it is loaded.
void with_environment() {
  warpwright_context* context = nullptr;
  warpwright_encoder* encoder = nullptr;
  CHECK_REFUSED(make(0, &context), WARPWRIGHT_INVALID_ARGUMENT, "OMP_NUM_THREADS");
  CHECK(make(2, &context) == WARPWRIGHT_OK);
  CHECK(normalize(context) == WARPWRIGHT_OK);
  CHECK(open(context, &encoder) == WARPWRIGHT_OK);
  warpwright_encoder_destroy(encoder);
  warpwright_context_destroy(context);
}

// Asks for 64 threads where the system grants only a few, then for one, which exists.
void short_of_threads() {
  warpwright_context* context = nullptr;
  CHECK_REFUSED(make(64, &context), WARPWRIGHT_FAILED, "threads");
  CHECK(make(1, &context) == WARPWRIGHT_OK);
  CHECK(normalize(context) == WARPWRIGHT_OK);
  warpwright_encoder* encoder = nullptr;
  CHECK(open(context, &encoder) == WARPWRIGHT_OK);
  CHECK_REFUSED(warpwright_context_set_threads(context, 64), WARPWRIGHT_FAILED, "threads");
  CHECK(normalize(context) == WARPWRIGHT_OK);
  warpwright_encoder_destroy(encoder);
  warpwright_context_destroy(context);
}

void limit(decltype(RLIMIT_AS) resource, rlim_t value) {
  const rlimit bounds{value, value};
  CHECK(setrlimit(resource, &bounds) == 0);
}

void test_limits() {
  if (kSanitized) return;
  IN_CHILD([] {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit(RLIMIT_AS, static_cast<rlim_t>(pages) * 4096 + (100u << 20));  // a stack takes 8 MiB
    short_of_threads();
  });
  IN_CHILD([] {
    // The limit does not apply to root. Another user may be unable to walk the path to the folder.
    CHECK(chdir(folder) == 0);
    folder = ".";
    if (getuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) return;
    limit(RLIMIT_NPROC, 1);
    short_of_threads();
  });
}

void test_forks() {
  IN_CHILD([] {  // the parent has not used the library yet
    warpwright_context* context = nullptr;
    CHECK(make(2, &context) == WARPWRIGHT_OK);
    CHECK(normalize(context) == WARPWRIGHT_OK);
    warpwright_context_destroy(context);
  });
  warpwright_context* context = nullptr;
  warpwright_encoder* encoder = nullptr;
  CHECK(make(2, &context) == WARPWRIGHT_OK);
  CHECK(open(context, &encoder) == WARPWRIGHT_OK);
  CHECK(normalize(context) == WARPWRIGHT_OK);
  IN_CHILD([&] {
    CHECK_REFUSED(normalize(context), WARPWRIGHT_FAILED, "forked");
    warpwright_encoder_info info{};
    info.size = sizeof info;
    CHECK_REFUSED(warpwright_encoder_get_info(encoder, &info), WARPWRIGHT_FAILED, "forked");
    const std::int32_t ids[] = {2, 3}, bounds[] = {0, 2};
    float out[512];
    warpwright_encoder_tokens_args a{};
    a.size = sizeof a, a.sequences = 1, a.ids = ids, a.cu_seqlens = bounds, a.out = out;
    CHECK_REFUSED(warpwright_encoder_tokens(encoder, &a), WARPWRIGHT_FAILED, "forked");
    warpwright_context* another = nullptr;
    CHECK_REFUSED(make(1, &another), WARPWRIGHT_FAILED, "forked");
    CHECK(std::strcmp(warpwright_encoder_text_error(encoder, 0), "") == 0);
    warpwright_encoder_destroy(encoder);
    warpwright_context_destroy(context);
  });
  CHECK(normalize(context) == WARPWRIGHT_OK);
  warpwright_encoder_destroy(encoder);
  warpwright_context_destroy(context);
}

// Calls made in the middle of another call, from the same thread and from another one.
struct Meanwhile {
  warpwright_context* context = nullptr;
  int lines = 0;
};
void call_meanwhile(void* data, const char* line) {
  auto* meanwhile = static_cast<Meanwhile*>(data);
  if (*line) ++meanwhile->lines;
  CHECK_REFUSED(normalize(meanwhile->context), WARPWRIGHT_INVALID_ARGUMENT, "in another call");
  std::thread([&] {
    CHECK_REFUSED(normalize(meanwhile->context), WARPWRIGHT_INVALID_ARGUMENT, "in another call");
    CHECK_REFUSED(warpwright_context_set_threads(meanwhile->context, 1), WARPWRIGHT_INVALID_ARGUMENT,
                  "in another call");
  }).join();
}
void test_two_calls_at_once() {
  Meanwhile meanwhile;
  CHECK(make(2, &meanwhile.context, call_meanwhile, &meanwhile) == WARPWRIGHT_OK);
  CHECK(normalize(meanwhile.context) == WARPWRIGHT_OK);
  CHECK(meanwhile.lines == 1);
  warpwright_context_destroy(meanwhile.context);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: process_test MODEL-FOLDER\n");
    return 2;
  }
  folder = arguments[1];
  if (count == 3) {
    with_environment();
    return failures == 0 ? 0 : 1;
  }
  // The tests with children come first, while no context exists.
  test_limits();
  test_forks();
  test_counts_of_threads();
  test_two_calls_at_once();
  setenv("OMP_NUM_THREADS", "100000", 1);
  const std::string again = "'" + std::string(arguments[0]) + "' '" + folder + "' environment";
  CHECK(std::system(again.c_str()) == 0);
  if (failures == 0) std::printf("the process lives\n");
  return failures == 0 ? 0 : 1;
}
