/* What `enable_pmu` can count, by the numbers of perf_event_open; and what the system counts instead.
 *
 * Written by simpler_ref/native_chip/header.py from simpler_ref/system/counters.py: change that, and run
 * python -m simpler_ref.native_chip.header.
 */
#ifndef SIMPLER_EVENTS_H
#define SIMPLER_EVENTS_H

#include <stdint.h>

typedef struct Event {
    const char *name;
    uint32_t kind;
    uint64_t config;
} Event;

typedef struct EventSet {
    int32_t event_type;
    int count;
    Event events[4];
} EventSet;

static const EventSet event_sets[] = {
    {1, 4,
     {{"cycles", 0, 0x0},
      {"instructions", 0, 0x1},
      {"branches", 0, 0x4},
      {"branch_misses", 0, 0x5}}},
    {2, 4,
     {{"cycles", 0, 0x0},
      {"instructions", 0, 0x1},
      {"stalled_frontend", 0, 0x7},
      {"stalled_backend", 0, 0x8}}},
    {4, 4,
     {{"cycles", 0, 0x0},
      {"cache_references", 0, 0x2},
      {"cache_misses", 0, 0x3},
      {"bus_cycles", 0, 0x6}}},
    {5, 3,
     {{"cycles", 0, 0x0},
      {"l1d_reads", 3, 0x0},
      {"l1d_read_misses", 3, 0x10000}}},
    {6, 4,
     {{"cycles", 0, 0x0},
      {"branch_misses", 0, 0x5},
      {"stalled_backend", 0, 0x8},
      {"context_switches", 1, 0x3}}},
    {7, 3,
     {{"cycles", 0, 0x0},
      {"dtlb_reads", 3, 0x3},
      {"dtlb_read_misses", 3, 0x10003}}},
    {8, 3,
     {{"cycles", 0, 0x0},
      {"llc_reads", 3, 0x2},
      {"llc_read_misses", 3, 0x10002}}},
};

static const char *const software_names[] = {
    "sw_minor_faults",
    "sw_major_faults",
    "sw_voluntary_switches",
    "sw_involuntary_switches"};

#endif
