// OpenMP tasks: what a task follows is said by depend clauses on the variables it reads and writes.

#include "serve.hpp"

#include <omp.h>

struct OpenMP {
    void prepare(Problem &) {}
    void run(Problem &problem) {
#pragma omp parallel num_threads(WORKERS)
#pragma omp single
        submit(problem);
    }

private:
    static void submit(Problem &problem) {
        const int n = problem.tasks();
        const auto *producer = problem.producer.data();
        Problem *shared = &problem;
        for (int i = 0; i < n; ++i) {
            const auto from = problem.first[i], to = problem.first[i + 1];
            if (problem.one_cell) {
#pragma omp task firstprivate(shared, i) depend(inout : problem.value[0])
                shared->execute(i);
            } else if (problem.producer.empty()) {
#pragma omp task firstprivate(shared, i)
                shared->execute(i);
            } else if (to == from) {
#pragma omp task firstprivate(shared, i) depend(out : problem.value[i])
                shared->execute(i);
            } else if (to == from + 1) {
#pragma omp task firstprivate(shared, i) depend(in : problem.value[producer[from]]) depend(out : problem.value[i])
                shared->execute(i);
            } else if (to == from + 2) {
#pragma omp task firstprivate(shared, i) depend(in : problem.value[producer[from]], problem.value[producer[from + 1]]) depend(out : problem.value[i])
                shared->execute(i);
            } else {
#pragma omp task firstprivate(shared, i) depend(in : problem.value[producer[from]], problem.value[producer[from + 1]], problem.value[producer[from + 2]]) depend(out : problem.value[i])
                shared->execute(i);
            }
        }
    }
};

int main() {
    OpenMP runtime;
    return serve(runtime, "\"OpenMP\": \"" + std::to_string(_OPENMP) + "\"");
}
