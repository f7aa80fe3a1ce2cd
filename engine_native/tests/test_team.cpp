#include "runtime/team.h"

#include <thread>
#include <vector>

#include "runtime/clock.h"
#include "testing.h"

using namespace kz;

namespace {

// A team with n threads helping, for the length of a scope.
struct Helped {
    explicit Helped(int n) : helpers(team, n) {
        while (team.helpers() < n) std::this_thread::yield();
    }
    Team team;
    Helpers helpers;
};

}  // namespace

TEST(every_item_is_done_once_before_run_returns) {
    for (int helpers : {0, 1, 3}) {
        Helped h(helpers);
        for (int round = 0; round < 2000; round++) {
            const int n = round % 37;
            std::vector<int> counts(static_cast<size_t>(n));  // plain: run() orders the accesses
            h.team.run(n, [&](int i) { counts[static_cast<size_t>(i)]++; });
            for (const int c : counts) {
                if (c != 1) CHECK_EQ(c, 1);
            }
        }
    }
}

TEST(helpers_take_part) {
    Helped h(1);
    std::atomic<int> others{0};
    const auto owner = std::this_thread::get_id();
    // The owner waits inside its item, if it gets one, for the helper to take the other.
    h.team.run(2, [&](int) {
        if (std::this_thread::get_id() != owner) {
            others++;
        } else {
            while (others == 0) std::this_thread::yield();
        }
    });
    CHECK(others >= 1);  // both, where the owner was put aside
}

TEST(a_sleeping_helper_wakes_for_a_section_and_to_leave) {
    Helped h(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // long past its spinning
    std::atomic<bool> other{false};
    const auto owner = std::this_thread::get_id();
    h.team.run(2, [&](int) {
        if (std::this_thread::get_id() != owner) {
            other = true;
        } else {
            while (!other) std::this_thread::yield();
        }
    });
    CHECK(other);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // ~Helped wakes it to leave
}

TEST(helpers_come_and_go) {
    Team team;
    std::atomic<bool> stop{false};
    std::thread visitor([&] {
        while (!stop) {
            std::atomic<bool> leave{false};
            std::thread caller([&] {
                leave = true;
                team.wake();
            });
            team.help(leave);
            caller.join();
        }
    });
    for (int round = 0; round < 5000; round++) {
        std::vector<int> counts(8);
        team.run(8, [&](int i) { counts[static_cast<size_t>(i)]++; });
        for (const int c : counts) {
            if (c != 1) CHECK_EQ(c, 1);
        }
    }
    stop = true;
    visitor.join();
    CHECK_EQ(team.helpers(), 0);
}

// Were a number ever there twice, a helper could take it for the one it saw, and sleep past its
// leave.
TEST(no_number_is_lost_between_sections_and_wake_ups) {
    constexpr uint32_t kRounds = 400000;
    Helped h(1);
    const uint32_t before = h.team.number();
    std::atomic<uint32_t> sections{0}, woken{0};
    std::thread waker([&] {
        while (sections < kRounds) {
            h.team.wake();
            woken++;
        }
    });
    while (sections < kRounds) {
        h.team.run(2, [](int) {});
        sections++;
    }
    waker.join();
    CHECK_EQ(h.team.number() - before, sections + woken);
}

// Each round's leave comes with its last section and wake-up: nobody wakes the helper later.
TEST(helpers_leave_amid_sections_and_wake_ups) {
    Team team;
    for (int round = 0; round < 500; round++) {
        std::atomic<bool> leave{false};
        std::thread helper([&] { team.help(leave); });
        std::thread owner([&] {
            for (int i = 0; i < 20; i++) team.run(2, [](int) {});
        });
        for (int i = 0; i < 20; i++) team.wake();
        if (round % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(400));  // asleep
        leave = true;
        team.wake();
        helper.join();
        owner.join();
    }
    CHECK_EQ(team.helpers(), 0);
}

TEST(helpers_go_where_they_are_sent) {
    Team first, second;
    Helpers helpers(first, second, 3);
    for (int round = 0; round < 200; round++) {
        const bool to_second = round % 2 == 1;
        helpers.prefer_second(to_second);
        const Team &there = to_second ? second : first, &gone = to_second ? first : second;
        while (there.helpers() < 3 || gone.helpers() > 0) std::this_thread::yield();
        if (round % 50 == 0)  // asleep
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

TEST(helpers_move_amid_the_work_of_both_teams) {
    Team first, second;
    Helpers helpers(first, second, 2);
    std::atomic<bool> stop{false};
    const auto work = [&](Team &team) {
        while (!stop) {
            std::vector<int> counts(8);
            team.run(8, [&](int i) { counts[static_cast<size_t>(i)]++; });
            if (counts != std::vector<int>(8, 1)) CHECK(counts == std::vector<int>(8, 1));
        }
    };
    std::thread other([&] { work(second); });
    std::thread mover([&] {
        for (int i = 0; i < 3000; i++) helpers.prefer_second(i % 2 == 0);
        stop = true;
    });
    work(first);
    mover.join();
    other.join();
}

TEST(helpers_end_wherever_they_are) {
    for (int round = 0; round < 50; round++) {
        Team first, second;
        Helpers helpers(first, second, 2);
        helpers.prefer_second(round % 2 == 0);
        if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

TEST(what_an_item_throws_comes_out_of_run) {
    for (const int helpers : {0, 2}) {
        Helped h(helpers);
        for (int round = 0; round < 200; round++) {
            std::vector<int> counts(9);
            CHECK_ERROR(h.team.run(9,
                                   [&](int i) {
                                       counts[static_cast<size_t>(i)]++;
                                       if (i == round % 9) fail(KZ_ERR_COMPUTE, "item %d", i);
                                   }),
                        KZ_ERR_COMPUTE, "item");
            h.team.run(9, [&](int i) { counts[static_cast<size_t>(i)] = 5; });
            CHECK(counts == std::vector<int>(9, 5));
        }
    }
}

TEST(more_items_than_can_be_shared_are_done_too) {
    Helped h(1);
    std::vector<int> counts(Team::kMaxItems + 10);
    h.team.run(static_cast<int>(counts.size()), [&](int i) { counts[static_cast<size_t>(i)]++; });
    CHECK(counts == std::vector<int>(counts.size(), 1));
}

TEST(help_until_ends_at_the_moment_at_leave_and_without_work) {
    Team team;
    std::atomic<bool> leave{false};
    CHECK(!team.help_until(leave, now_s() + 60));  // nothing to do: not a minute
    CHECK(team.help_until(leave, now_s()));
    leave = true;
    CHECK(team.help_until(leave, now_s() + 60));
    CHECK_EQ(team.helpers(), 0);

    // With work it stays until the moment, and takes part.
    leave = false;
    std::atomic<bool> over{false};
    std::atomic<int> others{0};
    std::thread owner([&] {
        const auto self = std::this_thread::get_id();
        while (!over) {
            team.run(2, [&](int) {
                if (std::this_thread::get_id() != self) others++;
            });
        }
    });
    const double moment = now_s() + 0.2;
    while (!team.help_until(leave, moment)) {
    }
    CHECK(now_s() >= moment);
    over = true;
    owner.join();
    CHECK(others > 0);
}
