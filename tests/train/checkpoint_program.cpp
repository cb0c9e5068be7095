// A training run that tests/train/checkpoint_test.py kills or makes fail:
//   checkpoint_program train FOLDER STEPS    resumes from the newest checkpoint, saves every second step, and
//                                            prints a digest of all state that a next step depends on
//   checkpoint_program faults FOLDER         saves and loads while each system call fails in turn
#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "tests/train/failing_calls.h"
#include "tests/train/training_run.h"

using namespace mezzo;
using training::Checkpoint;
using training::CheckpointFolder;

namespace {

void require(bool good, const std::string& what) {
    if (!good) throw std::runtime_error(what);
}

int train(const std::string& path, std::int64_t steps) {
    test::TrainingRun run(5);
    const Checkpoint checkpoint(run.parts());
    const CheckpointFolder folder(path, {.keep_last = 2});
    if (const auto info = folder.load_newest(checkpoint)) run.step_done = info->step;
    std::printf("from %lld\n", static_cast<long long>(run.step_done));
    std::fflush(stdout);
    run.train(steps, [&](std::int64_t step) {
        if (step % 2 == 0) folder.save(checkpoint, {.step = step});
    });
    std::uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a
    for (const double value : run.state())
        for (int byte = 0; byte < 8; ++byte)
            digest = (digest ^ (std::bit_cast<std::uint64_t>(value) >> 8 * byte & 255)) * 0x100000001b3u;
    std::printf("done %016llx\n", static_cast<unsigned long long>(digest));
    return 0;
}

// Restores the random stream, which belongs to the process, after another run.
struct KeepRandom {
    KeepRandom() = default;
    ~KeepRandom() { set_random_state(before); }
    KeepRandom(const KeepRandom&) = delete;
    KeepRandom& operator=(const KeepRandom&) = delete;
    RandomState before = random_state();
};

// A run with checkpoints of steps 1 and 2, and its states after steps 1, 2 and 3.
struct Faults {
    explicit Faults(const std::string& folder_path) : path(folder_path), folder(path, {.keep_last = 2}) {
        run.train(1);
        folder.save(checkpoint, {.step = 1});
        then[1] = run.state();
        run.train(2);
        folder.save(checkpoint, {.step = 2});
        then[2] = run.state();
        run.train(3);
        then[3] = run.state();
        std::filesystem::copy(path, path + ".kept");
    }
    ~Faults() { mezzo_test_fail(0, 0, false); }

    void reset() const {
        std::filesystem::remove_all(path);
        std::filesystem::copy(path + ".kept", path);
    }
    // The step at which a new training resumes.
    std::int64_t newest() const {
        const KeepRandom scope;
        test::TrainingRun fresh(8);
        const auto info = folder.load_newest(Checkpoint(fresh.parts()));
        require(info.has_value(), "no checkpoint is left");
        fresh.step_done = info->step;
        require(test::same_bits(fresh.state(), then[info->step]),
                "the checkpoint is not the one that was saved");
        return info->step;
    }
    // Saves while the n-th system call fails. Returns false if the save makes fewer calls than n.
    bool save(long n, int code, bool all, int& refused) {
        reset();
        bool threw = false;
        mezzo_test_fail(n, code, all);
        try {
            folder.save(checkpoint, {.step = 3});
        } catch (const Error& error) {
            threw = true;
            require(error.kind() == ErrorKind::io, std::string("another kind of error: ") + error.what());
        }
        const long calls = mezzo_test_calls();
        mezzo_test_fail(0, 0, false);
        refused += threw;
        require(newest() == (threw ? 2 : 3),
                threw ? "the old checkpoint is lost" : "the new checkpoint is not there");
        require(code != 0 || !threw, "a short write is no error");
        require(test::same_bits(run.state(), then[3]), "saving has changed the run");
        folder.save(checkpoint, {.step = 3});  // once the trouble is over
        require(newest() == 3, "the next save fails");
        return calls >= n;
    }
    bool load(long n, int code, bool all, int& refused) {
        reset();
        const KeepRandom scope;
        test::TrainingRun fresh(8);
        const std::vector<double> before = fresh.state();
        std::optional<training::CheckpointInfo> info;
        bool threw = false;
        mezzo_test_fail(n, code, all);
        try {
            info = folder.load_newest(Checkpoint(fresh.parts()));
        } catch (const Error& error) {
            threw = true;
            require(error.kind() == ErrorKind::io, std::string("another kind of error: ") + error.what());
        }
        const long calls = mezzo_test_calls();
        mezzo_test_fail(0, 0, false);
        refused += threw;
        require(threw || info.has_value(), "trouble is taken for a folder without checkpoints");
        if (info) fresh.step_done = info->step;
        require(test::same_bits(fresh.state(), threw ? before : then[info->step]), "half loaded");
        require(code != 0 || info->step == 2, "a short read is no error");
        return calls >= n;
    }

    std::string path;
    test::TrainingRun run{5};
    Checkpoint checkpoint{run.parts()};
    CheckpointFolder folder;
    std::vector<double> then[4];
};

int faults(const std::string& path) {
    require(mezzo_test_fail != nullptr, "run it with LD_PRELOAD");
    Faults test(path);
    for (const bool all : {false, true})
        for (const int code : {ENOSPC, EIO, EROFS, 0}) {
            int refused = 0, saves = 1, loads = 1;
            while (test.save(saves, code, all, refused)) ++saves;
            const int saves_refused = std::exchange(refused, 0);
            while (test.load(loads, code, all, refused)) ++loads;
            std::printf("errno %d%s: %d calls of a save, %d end it; %d calls of a load, %d end it\n", code,
                        all ? " from then on" : "", saves - 1, saves_refused, loads - 1, refused);
            require(saves > 10 && loads > 5, "too few calls: are they replaced?");
        }
    return 0;
}

}  // namespace

int main(int argc, char** argv) try {
    const std::string mode = argc > 2 ? argv[1] : "";
    if (mode == "train" && argc == 4) return train(argv[2], std::atoll(argv[3]));
    if (mode == "faults") return faults(argv[2]);
    std::fprintf(stderr, "see the first lines of checkpoint_program.cpp\n");
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_program: %s\n", error.what());
    return 1;
}
