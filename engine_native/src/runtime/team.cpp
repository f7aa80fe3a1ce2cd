#include "runtime/team.h"

#include <system_error>
#include <utility>

#include "runtime/clock.h"
#include "runtime/status.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace kz {

namespace {

// A helper without work spins so long before it sleeps: longer than what a model does between two
// products (sampling, norms), shorter than what would matter to another process.
constexpr double kSpinSeconds = 300e-6;
constexpr int kSpinsPerLook = 64;    // at the clock
constexpr int kSpinsForLast = 2000;  // of the owner, before it offers its core to the last helper

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

}  // namespace

template <typename F>
void Team::renumber(F change) {
    uint64_t state = state_.load(std::memory_order_relaxed);
    Ticket t;
    do {
        t = unpack(state);
        t.section++;
        change(t);
    } while (!state_.compare_exchange_weak(state, pack(t), std::memory_order_seq_cst));
    state_.notify_all();
}

bool Team::do_one() {
    uint64_t state = state_.load(std::memory_order_acquire);
    while (true) {
        Ticket t = unpack(state);
        if (t.next >= t.items) return false;
        const int item = t.next++;
        if (!state_.compare_exchange_weak(state, pack(t), std::memory_order_acq_rel,
                                          std::memory_order_acquire))
            continue;
        // The section cannot end before this item is done, so work_ and data_ are still its own.
        try {
            work_(data_, item);
        } catch (...) {
            if (!failed_.exchange(true)) error_ = std::current_exception();
        }
        done_.fetch_add(1, std::memory_order_release);
        return true;
    }
}

void Team::run_shared(int n, Work work, const void *data) {
    work_ = work;
    data_ = data;
    done_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    renumber([n](Ticket &t) {
        t.items = static_cast<uint16_t>(n);
        t.next = 0;
    });
    while (do_one()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < n; spins++) {
        if (spins < kSpinsForLast) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(error_, {}));
}

template <typename Over>
bool Team::work_until(const Over &over, uint64_t &state) {
    int idle = 0;
    double idle_since = 0;
    while (!over()) {
        state = state_.load(std::memory_order_acquire);
        if (do_one()) {
            idle = 0;
            continue;
        }
        if (idle == 0) idle_since = now_s();
        if (++idle % kSpinsPerLook == 0 && now_s() - idle_since >= kSpinSeconds) return false;
        relax();
    }
    return true;
}

void Team::help(const std::atomic<bool> &leave) {
    helpers_.fetch_add(1);
    const auto over = [&] { return leave.load(std::memory_order_acquire); };
    uint64_t seen = 0;
    while (!work_until(over, seen)) {
        if (!leave.load(std::memory_order_seq_cst)) state_.wait(seen, std::memory_order_acquire);
    }
    helpers_.fetch_sub(1);
}

bool Team::help_until(const std::atomic<bool> &leave, double moment) {
    helpers_.fetch_add(1);
    uint64_t seen = 0;
    const bool over = work_until(
        [&] { return leave.load(std::memory_order_acquire) || now_s() >= moment; }, seen);
    helpers_.fetch_sub(1);
    return over;
}

void Team::wake() {
    // For the same items: a claim in the making is tried again.
    renumber([](Ticket &) {});
}

Helpers::Helpers(Team &first, Team &second, int n) : teams_{&first, &second} {
    try {
        for (int i = 0; i < n; i++) threads_.emplace_back([this] { help(); });
    } catch (const std::system_error &e) {
        const auto started = threads_.size();
        stop();
        fail(KZ_ERR_MEMORY, "cannot start %d helping threads, only %zu: %s", n, started, e.what());
    } catch (...) {
        stop();
        throw;
    }
}

void Helpers::help() {
    while (!stop_) {
        const int at = at_;
        teams_[at]->help(leave_[at]);
    }
}

void Helpers::prefer_second(bool second) {
    const int to = second ? 1 : 0, from = 1 - to;
    if (threads_.empty() || at_ == to) return;
    // In this order a helper that looks in between comes round again, and never stays behind.
    leave_[to] = false;
    at_ = to;
    leave_[from] = true;
    teams_[from]->wake();
}

void Helpers::stop() {
    stop_ = true;
    for (const int i : {0, 1}) {
        leave_[i] = true;
        teams_[i]->wake();
    }
    for (std::thread &t : threads_) t.join();
    threads_.clear();
}

}  // namespace kz
