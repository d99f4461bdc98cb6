// StarPU: data handles with access modes, from which it infers what a task follows.
//
// Each value has a handle. Handles are registered beforehand and used in turn: the value of task i has handle
// i modulo their number, which is more than any graph looks back; StarPU itself keeps later writers behind
// earlier readers.

#include "serve.hpp"

#include <starpu.h>

static void execute(void *[], void *argument);

struct StarPU {
    static constexpr int HANDLES = 8192;
    std::vector<starpu_data_handle_t> handles{std::size_t(HANDLES), nullptr};
    std::vector<std::int64_t> cells;
    std::vector<int> numbers;
    starpu_codelet plain{}, updates{}, writes[MAX_PRODUCERS + 1]{};
    static Problem *problem;

    StarPU() : cells(HANDLES) {
        starpu_conf conf;
        starpu_conf_init(&conf);
        conf.ncpus = WORKERS;
        conf.ncuda = conf.nopencl = 0;
        if (starpu_init(&conf)) throw std::runtime_error("starpu_init failed");
        for (int i = 0; i < HANDLES; ++i)
            starpu_variable_data_register(&handles[i], STARPU_MAIN_RAM, reinterpret_cast<uintptr_t>(&cells[i]),
                                          sizeof cells[i]);
        set_up(plain, 0);
        set_up(updates, 1);
        updates.modes[0] = STARPU_RW;
        for (int k = 0; k <= MAX_PRODUCERS; ++k) {
            set_up(writes[k], k + 1);
            writes[k].modes[0] = STARPU_W;
            for (int r = 1; r <= k; ++r) writes[k].modes[r] = STARPU_R;
        }
    }
    ~StarPU() {
        for (auto handle : handles) starpu_data_unregister(handle);
        starpu_shutdown();
    }
    void prepare(Problem &given) {
        problem = &given;
        numbers.resize(given.tasks());
        for (int i = 0; i < given.tasks(); ++i) {
            numbers[i] = i;
            for (auto k = given.first[i]; k < given.first[i + 1]; ++k)
                if (i - given.producer[k] >= HANDLES && !given.one_cell) throw Unsupported("the graph looks too far back");
        }
    }
    void run(Problem &given) {
        for (int i = 0; i < given.tasks(); ++i) submit(given, i);
        given.submitted = now();
        starpu_task_wait_for_all();
    }

private:
    static void set_up(starpu_codelet &codelet, int buffers) {
        starpu_codelet_init(&codelet);
        codelet.cpu_funcs[0] = execute;
        codelet.nbuffers = buffers;
    }
    void submit(Problem &given, int i) {
        starpu_task *task = starpu_task_create();
        task->cl_arg = &numbers[i];
        task->cl_arg_size = sizeof numbers[i];
        if (given.one_cell) {
            task->cl = &updates;
            task->handles[0] = handles[0];
        } else if (given.producer.empty()) {
            task->cl = &plain;
        } else {
            int reads = 0;
            for (auto k = given.first[i]; k < given.first[i + 1]; ++k)
                task->handles[++reads] = handles[given.producer[k] % HANDLES];
            task->handles[0] = handles[i % HANDLES];
            task->cl = &writes[reads];
        }
        if (starpu_task_submit(task)) throw std::runtime_error("starpu_task_submit failed");
    }
};

Problem *StarPU::problem = nullptr;

static void execute(void *[], void *argument) { StarPU::problem->execute(*static_cast<int *>(argument)); }

int main() {
    int major, minor, release;
    starpu_get_version(&major, &minor, &release);
    StarPU runtime;
    return serve(runtime, "\"StarPU\": \"" + std::to_string(major) + "." + std::to_string(minor) + "." +
                              std::to_string(release) + "\"");
}
