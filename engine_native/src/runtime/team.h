// Threads that share one piece of work at a time, for passes so short that a sleeping thread would
// wake too late: a matrix product of a language model takes a tenth of a millisecond.
//
// The owner publishes a section of n items; it and whoever is helping claim items until none is
// left.  Nobody waits for a thread that has not claimed anything, so a helper that the system has
// put aside costs nothing, and with no helper at all a section is a plain loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace kz {

class Team {
  public:
    static constexpr int kMaxItems = 0xffff;  // shared; more are done by the caller

    Team() = default;
    Team(const Team &) = delete;

    // Calls work(i) once for every i of [0, n) from this thread and its helpers;
    // returns when all calls have ended.  One caller at a time.  What a call throws is thrown here
    // then; with several, one of them.
    template <typename F>
    void run(int n, const F &work) {
        if (n <= 1 || n > kMaxItems || helpers() == 0) {
            for (int i = 0; i < n; i++) work(i);
            return;
        }
        run_shared(n, [](const void *f, int i) { (*static_cast<const F *>(f))(i); }, &work);
    }

    // Helps with every section until leave is true.  A thread without work spins for some
    // hundred microseconds and then sleeps until the next section or wake().
    void help(const std::atomic<bool> &leave);
    // The same until a moment of now_s(), and for no longer than there is work: a thread without
    // any returns instead of sleeping.  True: leave is true, or the moment has come.
    bool help_until(const std::atomic<bool> &leave, double moment);

    // Lets sleeping helpers look at their leave flag.
    void wake();

    // Threads helping now.
    int helpers() const { return helpers_.load(std::memory_order_relaxed); }
    // How many shared sections and wake-ups there were.
    uint32_t number() const { return unpack(state_.load(std::memory_order_relaxed)).section; }

  private:
    using Work = void (*)(const void *data, int item);
    // Section number, its items, the next one to claim.
    struct Ticket {
        uint32_t section;
        uint16_t items, next;
    };
    static uint64_t pack(Ticket t) {
        return static_cast<uint64_t>(t.section) << 32 | static_cast<uint64_t>(t.items) << 16 |
               t.next;
    }
    static Ticket unpack(uint64_t s) {
        return {static_cast<uint32_t>(s >> 32), static_cast<uint16_t>(s >> 16),
                static_cast<uint16_t>(s)};
    }

    void run_shared(int n, Work work, const void *data);
    // Another number, never one that was there before: what a helper saw before it sleeps is out of
    // date then, whoever else renumbers meanwhile.
    template <typename F>
    void renumber(F change);
    // Claims and does one item; false when none is left.
    bool do_one();
    // Does what there is until over() or nothing came for some hundred microseconds; then false.
    // state: as it was before the last look for work.
    template <typename Over>
    bool work_until(const Over &over, uint64_t &state);

    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int> done_{0};
    std::atomic<int> helpers_{0};
    Work work_ = nullptr;  // of the section in state_: written before it, read after a claim
    const void *data_ = nullptr;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;  // of the section, once failed_
};

// Threads that help one of two teams at a time, the first to begin with, until they are destroyed.
class Helpers {
  public:
    // Throws KZ_ERR_MEMORY when the system does not give n threads; n <= 0: none.
    Helpers(Team &first, Team &second, int n);
    Helpers(Team &team, int n) : Helpers(team, team, n) {}
    ~Helpers() { stop(); }
    Helpers(const Helpers &) = delete;

    // Sends all of them to one of the teams; they leave the other after the item they are at.
    // One caller at a time.
    void prefer_second(bool second);

  private:
    void help();
    void stop();
    Team *teams_[2];
    std::atomic<bool> leave_[2]{};
    std::atomic<int> at_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

}  // namespace kz
