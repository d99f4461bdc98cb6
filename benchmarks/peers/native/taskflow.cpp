// Taskflow: nodes, and edges given by hand. With the argument `again`, a graph is built once, untimed, and run.

#include "serve.hpp"

#include <taskflow/taskflow.hpp>

struct Taskflow {
    bool again;
    tf::Executor executor{WORKERS};
    tf::Taskflow graph;
    std::vector<tf::Task> nodes;

    void prepare(Problem &problem) {
        if (again) build(problem);
    }
    void run(Problem &problem) {
        if (!again) build(problem);
        executor.run(graph).wait();
    }

private:
    void build(Problem &problem) {
        graph.clear();
        nodes.clear();
        nodes.reserve(problem.tasks());
        for (int i = 0; i < problem.tasks(); ++i) {
            nodes.push_back(graph.emplace([&problem, i] { problem.execute(i); }));
            for (auto k = problem.first[i]; k < problem.first[i + 1]; ++k) nodes[i].succeed(nodes[problem.producer[k]]);
        }
    }
};

int main(int count, char **arguments) {
    Taskflow runtime{count > 1 && std::string(arguments[1]) == "again"};
    return serve(runtime, std::string("\"Taskflow\": \"") + tf::version() + "\"");
}
