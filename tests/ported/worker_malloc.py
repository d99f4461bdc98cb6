"""Memory of a chip from the program: allocated, written, read back and freed."""

import mmap
import sys

import numpy as np
from simpler.worker import Worker


def main():
    data = np.frombuffer(mmap.mmap(-1, 4096), np.float32)
    back = np.frombuffer(mmap.mmap(-1, 4096), np.float32)
    data[:] = np.arange(data.size)
    worker = Worker(
        level=3,
        device_ids=[0, 1],
        num_sub_workers=0,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
    )
    worker.init()
    try:
        for chip in range(2):
            address = worker.malloc(data.nbytes, worker_id=chip)
            assert address != 0
            worker.copy_to(address, data.ctypes.data, data.nbytes, worker_id=chip)
            back[:] = 0
            worker.copy_from(back.ctypes.data, address, back.nbytes, worker_id=chip)
            assert (back == data).all()
            worker.free(address, worker_id=chip)
        try:
            worker.malloc(16, worker_id=2)
        except IndexError as error:
            assert "out of range" in str(error), error
        else:
            raise AssertionError("there is no third chip")
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
