// What every runner in C++ has in common; see ../runners/serve.py for the protocol.

#pragma once

#include "problem.hpp"

// Run a problem several times, each run checked; the first warms up unless it is long.
template <class Runtime>
std::vector<double> seconds_of(Runtime &runtime, Problem &problem, int repeats, double budget) {
    std::vector<double> taken;
    runtime.prepare(problem);
    const double begin = now();
    do {
        problem.reset();
        const double start = now();
        runtime.run(problem);
        const double end = now();
        if (problem.submit_only && problem.submitted < start) throw Unsupported("submitting is not apart from running");
        taken.push_back((problem.submit_only ? problem.submitted : end) - start);
        if (!problem.agrees()) throw std::runtime_error("the result is wrong");
    } while (static_cast<int>(taken.size()) <= repeats && now() - begin + taken.back() <= budget);
    if (taken.size() > 1) taken.erase(taken.begin());
    return taken;
}

template <class Runtime> std::string answer(Runtime &runtime, const std::string &line) {
    std::istringstream words(line);
    std::string workload, pair;
    Parameters parameters;
    words >> workload;
    while (words >> pair) {
        const auto at = pair.find('=');
        parameters[pair.substr(0, at)] = pair.substr(at + 1);
    }
    std::ostringstream out;
    out.precision(12);
    try {
        const auto problem = make_problem(workload, parameters);
        const auto taken =
            seconds_of(runtime, *problem, whole(parameters, "repeats"), std::stod(parameters["budget"]));
        out << "{\"seconds\": [";
        for (std::size_t i = 0; i < taken.size(); ++i) out << (i ? ", " : "") << taken[i];
        out << "], \"tasks\": " << problem->tasks() << "}";
    } catch (const Unsupported &why) {
        out << "{\"unsupported\": \"" << why.what() << "\"}";
    } catch (const std::exception &error) {
        out << "{\"error\": \"" << error.what() << "\"}";
    }
    return out.str();
}

// Answer requests until there are no more. `versions` is JSON without the braces.
template <class Runtime> int serve(Runtime &runtime, const std::string &versions) {
    std::string more = "\"compiler\": \"gcc " __VERSION__ "\"";
#ifdef WITH_BLAS
    openblas_set_num_threads(1);
    std::istringstream config(openblas_get_config());
    std::string name, version;
    config >> name >> version;
    more += ", \"OpenBLAS\": \"" + version + "\"";
#endif
    Independent warm_up(1000);
    runtime.prepare(warm_up);
    runtime.run(warm_up);
    char spins[32];
    std::snprintf(spins, sizeof spins, "%.6e", seconds_per_spin());
    std::cout << "{\"versions\": {" << versions << ", " << more << "}, \"seconds_per_spin\": " << spins << "}" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(runtime, line) << std::endl;
    return 0;
}
