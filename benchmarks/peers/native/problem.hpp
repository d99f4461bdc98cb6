// The graphs that are timed, for peers in C++: what each task does, and which tasks it follows.
//
// A runtime is given a Problem and runs task i after its producers: `for (k = first[i]; k < first[i + 1]; ++k)
// producer[k]`. Tasks are numbered in an order in which they could run one after another. What a task does is
// `problem.execute(i)`. The same graphs stand in ../runners/dags.py.

#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

constexpr int WORKERS = 2;
constexpr int MAX_PRODUCERS = 3;
constexpr std::int64_t MASK = (std::int64_t{1} << 31) - 1;

struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keep a core busy with a fixed amount of work: each step needs the result of the one before.
inline std::uint64_t spin(std::int64_t spins, std::uint64_t x) {
    for (std::int64_t k = 0; k < spins; ++k) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        asm volatile("" : "+r"(x));
    }
    return x;
}

inline double seconds_per_spin() {
    double best = 1e9;
    for (int trial = 0; trial < 200; ++trial) {
        const double start = now();
        spin(20000, trial);
        best = std::min(best, now() - start);
    }
    return best / 20000;
}

#ifdef WITH_BLAS
extern "C" {
void dpotrf_(const char *, const int *, double *, const int *, int *);
void dtrsm_(const char *, const char *, const char *, const char *, const int *, const int *, const double *,
            const double *, const int *, double *, const int *);
void dgemm_(const char *, const char *, const int *, const int *, const int *, const double *, const double *,
            const int *, const double *, const int *, const double *, double *, const int *);
void openblas_set_num_threads(int);
char *openblas_get_config(void);
}
#endif

class Problem {
public:
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> producer;
    std::vector<std::int64_t> value;
    bool one_cell = false;  // every task updates the same variable: value[0]
    bool submit_only = false;  // what counts is the time until the last task is submitted,
    double submitted = 0;      // which is then
    virtual ~Problem() = default;
    virtual void execute(int i) = 0;
    virtual bool agrees() = 0;
    virtual void reset() { std::fill(value.begin(), value.end(), 0); }
    int tasks() const { return static_cast<int>(first.size()) - 1; }

protected:
    void add(std::initializer_list<int> producers) {
        for (int one : producers)
            if (one >= 0) producer.push_back(one);
        first.push_back(static_cast<std::int64_t>(producer.size()));
        value.push_back(0);
    }
};

class Independent : public Problem {
public:
    explicit Independent(int n) {
        for (int i = 0; i < n; ++i) add({});
    }
    void execute(int i) override { value[i] += i + 1; }
    bool agrees() override {
        for (int i = 0; i < tasks(); ++i)
            if (value[i] != i + 1) return false;
        return true;
    }
};

class Chain : public Problem {
public:
    explicit Chain(int n) {
        for (int i = 0; i < n; ++i) add({i - 1});
        one_cell = true;
    }
    void execute(int) override { value[0] += 1; }
    bool agrees() override { return value[0] == tasks(); }
};

class Stencil : public Problem {
public:
    Stencil(int width, int steps, std::int64_t spins) : width(width), spins(spins) {
        for (int i = 0; i < width * steps; ++i) {
            const int above = i / width - 1, at = i % width;
            if (above < 0)
                add({});
            else  // a ring of two has two neighbours, not three
                add({above * width + at, above * width + (at + width - 1) % width,
                     width > 2 ? above * width + (at + 1) % width : -1});
        }
        std::vector<std::int64_t> row(width), next(width);
        for (int i = 0; i < width; ++i) row[i] = i;
        for (int step = 0; step < steps; ++step, std::swap(row, next))
            for (int i = 0; i < width; ++i)
                next[i] = combine(row[(i + width - 1) % width], row[i], row[(i + 1) % width]);
        expected = row;
    }
    void execute(int i) override {
        const int above = i / width - 1, at = i % width;
        const int left = (at + width - 1) % width, right = (at + 1) % width;
        waste(spin(spins, i));
        if (above < 0)
            value[i] = combine(left, at, right);
        else
            value[i] = combine(value[above * width + left], value[above * width + at],
                               value[above * width + right]);
    }
    bool agrees() override { return std::equal(expected.begin(), expected.end(), value.end() - width); }

private:
    int width;
    std::int64_t spins;
    std::vector<std::int64_t> expected;
    static std::int64_t combine(std::int64_t l, std::int64_t m, std::int64_t r) { return (l + 3 * m + r + 1) & MASK; }
    static void waste(std::uint64_t x) { asm volatile("" : : "r"(x)); }
};

class Tree : public Problem {
public:
    explicit Tree(int leaves) : leaves(leaves) {
        for (int i = 0; i < leaves; ++i) add({});
        for (int k = 0; k < leaves - 1; ++k) add({2 * k, 2 * k + 1});
    }
    void execute(int i) override {
        value[i] = i < leaves ? i : value[2 * (i - leaves)] + value[2 * (i - leaves) + 1];
    }
    bool agrees() override { return value.back() == std::int64_t{leaves} * (leaves - 1) / 2; }

private:
    int leaves;
};

class Random : public Problem {
public:
    explicit Random(const std::string &path) {
        std::ifstream file(path, std::ios::binary);
        std::int32_t row[3];
        while (file.read(reinterpret_cast<char *>(row), sizeof row)) {
            add({row[0], row[1], row[2]});
            expected.push_back(compute(expected, static_cast<int>(expected.size())));
        }
        if (expected.empty()) throw std::runtime_error("no graph in " + path);
    }
    void execute(int i) override { value[i] = compute(value, i); }
    bool agrees() override { return value == expected; }

private:
    std::vector<std::int64_t> expected;
    std::int64_t compute(const std::vector<std::int64_t> &of, int i) const {
        std::int64_t sum = i;
        for (auto k = first[i]; k < first[i + 1]; ++k) sum += of[producer[k]];
        return sum & MASK;
    }
};

class ThreeTensors : public Problem {
public:
    explicit ThreeTensors(int n) {
        for (int i = 0; i < n; ++i) add({i - 2, i - 1});
        submit_only = true;
    }
    void execute(int i) override { value[i] = ((i > 0 ? value[i - 1] : 0) + (i > 1 ? value[i - 2] : 0) + 1) & MASK; }
    bool agrees() override {
        std::int64_t before = 0, last = 0;
        for (const std::int64_t one : value) {
            if (one != ((last + before + 1) & MASK)) return false;
            before = last;
            last = one;
        }
        return true;
    }
};

class Touch : public Problem {
public:
    Touch(int mib, bool fills) : memory(static_cast<std::size_t>(mib) << 17, 1.0), fills(fills) { add({}); }
    void execute(int) override {
        if (fills) {
            for (double &one : memory) one = 2.0;
            return;
        }
        double sums[8] = {};
        for (std::size_t i = 0; i < memory.size(); i += 8)
            for (int lane = 0; lane < 8; ++lane) sums[lane] += memory[i + lane];
        sum = 0;
        for (double one : sums) sum += one;
    }
    void reset() override {
        std::fill(memory.begin(), memory.end(), 1.0);
        sum = 0;
    }
    bool agrees() override {
        if (!fills) return sum == static_cast<double>(memory.size());
        for (double one : memory)
            if (one != 2.0) return false;
        return true;
    }

private:
    std::vector<double> memory;
    bool fills;
    double sum = 0;
};

#ifdef WITH_BLAS
class Cholesky : public Problem {
public:
    Cholesky(int n, int tile) : n(n), tile(tile), rows(n / tile), size(std::size_t(tile) * tile) {
        std::vector<int> last(rows * rows, -1);
        auto step = [&](char kind, int i, int j, int k) {
            const int own = last[i * rows + j];
            if (kind == 'p') add({own});
            if (kind == 't') add({own, last[k * rows + k]});
            if (kind == 'u' && i != j) add({own, last[i * rows + k], last[j * rows + k]});
            if (kind == 'u' && i == j) add({own, last[i * rows + k]});
            last[i * rows + j] = static_cast<int>(steps.size());
            steps.push_back({kind, i, j, k});
        };
        for (int k = 0; k < rows; ++k) {
            step('p', k, k, k);
            for (int i = k + 1; i < rows; ++i) step('t', i, k, k);
            for (int i = k + 1; i < rows; ++i)
                for (int j = k + 1; j <= i; ++j) step('u', i, j, k);
        }
        fill(original);
        std::vector<double> whole(std::size_t(n) * n);
        for (int c = 0; c < n; ++c)
            for (int r = 0; r < n; ++r) whole[std::size_t(c) * n + r] = element(r, c);
        int info;
        dpotrf_("L", &n, whole.data(), &n, &info);
        expected.resize(original.size());
        each([&](std::size_t at, int r, int c) { expected[at] = r >= c ? whole[std::size_t(c) * n + r] : 0.0; });
    }
    void reset() override { tiles = original; }
    void execute(int i) override {
        const Step &s = steps[i];
        const double one = 1.0, minus = -1.0;
        int info = 0;
        if (s.kind == 'p') dpotrf_("L", &tile, at(s.i, s.j), &tile, &info);
        if (s.kind == 't') dtrsm_("R", "L", "T", "N", &tile, &tile, &one, at(s.k, s.k), &tile, at(s.i, s.j), &tile);
        if (s.kind == 'u')
            dgemm_("N", "T", &tile, &tile, &tile, &minus, at(s.i, s.k), &tile, at(s.j, s.k), &tile, &one,
                   at(s.i, s.j), &tile);
    }
    bool agrees() override {
        double worst = 0;
        each([&](std::size_t at, int r, int c) {
            if (r >= c) worst = std::max(worst, std::fabs(tiles[at] - expected[at]));
        });
        return worst < 1e-9;
    }

private:
    struct Step {
        char kind;
        int i, j, k;
    };
    int n, tile, rows;
    std::size_t size;
    std::vector<Step> steps;
    std::vector<double> original, tiles, expected;
    double *at(int i, int j) { return tiles.data() + (std::size_t(i) * rows + j) * size; }
    static double element(int r, int c) { return std::exp(-std::abs(r - c) / 64.0) + (r == c ? 0.1 : 0.0); }
    template <class F> void each(F f) {
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j <= i; ++j)
                for (int c = 0; c < tile; ++c)
                    for (int r = 0; r < tile; ++r)
                        f((std::size_t(i) * rows + j) * size + std::size_t(c) * tile + r, i * tile + r, j * tile + c);
    }
    void fill(std::vector<double> &into) {
        into.assign(size * rows * rows, 0.0);
        each([&](std::size_t at, int r, int c) { into[at] = element(r, c); });
    }
};
#endif

using Parameters = std::map<std::string, std::string>;

inline int whole(const Parameters &parameters, const char *key) { return std::stoi(parameters.at(key)); }

inline std::unique_ptr<Problem> make_problem(const std::string &workload, const Parameters &p) {
    if (workload == "independent") return std::make_unique<Independent>(whole(p, "n"));
    if (workload == "chain") return std::make_unique<Chain>(whole(p, "n"));
    if (workload == "stencil")
        return std::make_unique<Stencil>(whole(p, "width"), whole(p, "steps"), std::stoll(p.at("spins")));
    if (workload == "tree") return std::make_unique<Tree>(whole(p, "leaves"));
    if (workload == "random") return std::make_unique<Random>(p.at("path"));
    if (workload == "send") return std::make_unique<Touch>(whole(p, "mib"), false);
    if (workload == "receive") return std::make_unique<Touch>(whole(p, "mib"), true);
    if (workload == "submit") return std::make_unique<ThreeTensors>(whole(p, "n"));
    if (workload == "group") throw Unsupported("no tasks that run on several workers at once");
#ifdef WITH_BLAS
    if (workload == "cholesky") return std::make_unique<Cholesky>(whole(p, "n"), whole(p, "tile"));
#else
    if (workload == "cholesky") throw Unsupported("libopenblas-dev is not installed");
#endif
    throw Unsupported("no such workload");
}
