// oneTBB's flow graph: nodes that wait for messages, and edges given by hand.

#include "serve.hpp"

#include <deque>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/version.h>

struct OneTBB {
    using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;
    tbb::global_control limit{tbb::global_control::max_allowed_parallelism, WORKERS};

    void prepare(Problem &) {}
    void run(Problem &problem) {
        tbb::flow::graph graph;
        std::deque<Node> nodes;
        std::vector<Node *> roots;
        for (int i = 0; i < problem.tasks(); ++i) {
            nodes.emplace_back(graph, [&problem, i](const tbb::flow::continue_msg &) { problem.execute(i); });
            if (problem.first[i] == problem.first[i + 1]) roots.push_back(&nodes.back());
            for (auto k = problem.first[i]; k < problem.first[i + 1]; ++k)
                tbb::flow::make_edge(nodes[problem.producer[k]], nodes[i]);
        }
        for (Node *root : roots) root->try_put(tbb::flow::continue_msg());
        graph.wait_for_all();
    }
};

int main() {
    OneTBB runtime;
    return serve(runtime, std::string("\"oneTBB\": \"") + TBB_runtime_version() + "\"");
}
