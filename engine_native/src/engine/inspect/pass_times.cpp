#include "engine/inspect/pass_times.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/clock.h"

namespace kz {

namespace {

// Seconds of one run of f, the least of three after one that warms up.
template <typename F>
double least_time(F f) {
    f();
    double best = 1e30;
    for (int i = 0; i < 3; i++) {
        const double start = now_s();
        f();
        best = std::min(best, now_s() - start);
    }
    return best;
}

class BarePass {
  public:
    BarePass(const PackedWeights &w, Team &team) : w_(w), products_(*w.kernels, *w.quant, team) {}
    void run(int head) {
        for (const Matrix *m : w_.pass(head)) {
            float *x = rows_.reset(1, m->in);
            std::fill(x, x + m->in, 0.5f);
            products_.run(*m, rows_, at_least(out_, static_cast<size_t>(m->out)), false);
        }
    }

  private:
    const PackedWeights &w_;
    Products products_;
    Activations rows_;
    FloatBuffer out_;
};

}  // namespace

PassTimes measure_passes(const Model &model, int threads) {
    const auto *talker = std::get_if<PackedWeights>(&model.talker.lm.form);
    const auto *cp = std::get_if<PackedWeights>(&model.cp.lm.form);
    if (!talker || !cp) return {};
    Team team;
    const Helpers helpers(team, threads - 1);
    while (team.helpers() < threads - 1) std::this_thread::yield();
    BarePass talker_pass(*talker, team), cp_pass(*cp, team);
    PassTimes times;
    times.talker_s = least_time([&] { talker_pass.run(0); });
    times.cp_s = least_time([&] {
        for (int g = 0; g < model.cp.config.n_steps; g++) cp_pass.run(g);
    });
    return times;
}

}  // namespace kz
