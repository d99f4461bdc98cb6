"""What is here plays the interpreted kernels: with compiled ones there is nothing to collect."""

from simpler_ref.jit.kernel import INTERPRETED

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]
