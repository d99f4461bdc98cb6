"""A matrix times a vector on a grid of simulated chips, each of which is in two communication domains.

The chip in row r and column c of the grid has that tile of the matrix. The first chip of each column
gives its part of the vector to the others of that column, in their domain; each chip multiplies; and the
chips of each row add up what they have, in their domain. One kernel uses both domains.
"""

import argparse
import sys

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    In,
    InOut,
    Out,
    Scalar,
    barrier,
    core_kernel,
    domain_rank,
    domain_size,
    peer,
    put,
)
from simpler_ref.task_interface import CommBufferSpec

ONE_BLOCK = CallConfig(block_dim=1)  # the block that waits for those of the other chips
TOLERANCE = 1e-4  # of 32-bit floats


# ---------------------------------------------------------------- what the chips run
@core_kernel(
    a=In("float32", 2),
    x=In("float32"),
    y=Out("float32"),
    part=InOut("float32"),
    product=InOut("float32"),
    column=Scalar("uint64"),
    row=Scalar("uint64"),
)
def multiply(a, x, y, part, product, column, row):
    """Y := this chip's share of the sum over its row of a times the part of x that its column has."""
    if domain_rank(column) == 0:
        for rank in range(domain_size(column)):
            status = put(column, rank, part, x)
            if status != 0:
                return status
    status = barrier(column)
    if status != 0:
        return status
    for i in range(a.shape[0]):
        product[i] = 0
        for j in range(a.shape[1]):
            product[i] += a[i, j] * part[j]
    status = barrier(row)
    if status != 0:
        return status
    first = product.size * domain_rank(row) // domain_size(row)
    for i in range(y.size):
        y[i] = 0
        for rank in range(domain_size(row)):
            y[i] += peer(row, rank, product)[first + i]
    return 0


# ---------------------------------------------------------------- the graph
class Grid:
    """The chips, the domains they are in, and what each has."""

    def __init__(self, rows, columns, height, width):
        self.rows, self.columns = rows, columns
        self.chips = range(rows * columns)
        self.part = CommBufferSpec("part", "float32", -(-width // columns))
        self.product = CommBufferSpec("product", "float32", -(-height // rows))

    def place(self, chip):
        """Return the row and the column of a chip."""
        return divmod(chip, self.columns)

    def of_column(self, column):
        return [chip for chip in self.chips if self.place(chip)[1] == column]

    def of_row(self, row):
        return [chip for chip in self.chips if self.place(chip)[0] == row]


def share(whole, parts, number):
    """Return one of the parts of an array."""
    return whole[len(whole) * number // parts : len(whole) * (number + 1) // parts]


def product(grid, handle, a, x, y):
    """Return the orchestration function: one task for all chips, and a domain for each row and column."""

    def domain(orch, name, chips, buffer):
        return orch.allocate_domain(
            name=name, workers=chips, window_size=max(1, buffer.nbytes), buffers=[buffer]
        )

    def window(context, name, size):
        at = context.buffer_ptrs[name]
        return ContinuousTensor.make(at, (size,), "float32", child_memory=True)

    def member(chip, of_column, of_row):
        row, column = grid.place(chip)
        tile = a[row][column]
        args = TaskArgs()
        args.add_tensor(tile, T.INPUT)
        args.add_tensor(share(x, grid.columns, column), T.INPUT)
        mine = share(share(y, grid.rows, row), grid.columns, column)
        args.add_tensor(mine, T.OUTPUT_EXISTING)
        args.add_tensor(window(of_column, "part", tile.shape[1]), T.INOUT)
        args.add_tensor(window(of_row, "product", tile.shape[0]), T.INOUT)
        args.add_scalar(of_column.device_ctx)
        args.add_scalar(of_row.device_ctx)
        return args

    def orchestrate(orch, args, config):
        of_columns = [
            domain(orch, f"column {c}", grid.of_column(c), grid.part) for c in range(grid.columns)
        ]
        of_rows = [domain(orch, f"row {r}", grid.of_row(r), grid.product) for r in range(grid.rows)]
        members = []
        for chip in grid.chips:
            row, column = grid.place(chip)
            members.append(member(chip, of_columns[column][chip], of_rows[row][chip]))
        orch.submit_next_level_group(handle, members, ONE_BLOCK, workers=grid.chips)
        # the domains are freed when the run has drained

    return orchestrate


def plain_numpy(matrix, vector):
    """Return the same result, without chips."""
    return matrix @ vector


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=positive, default=2, help="of the grid (2)")
    parser.add_argument("--columns", type=positive, default=2, help="of the grid (2)")
    parser.add_argument("--height", type=positive, default=1000, help="of the matrix (1000)")
    parser.add_argument("--width", type=positive, default=1500, help="of the matrix (1500)")
    options = parser.parse_args()
    rows, columns = options.rows, options.columns
    if rows * columns > 16:
        parser.error(f"{rows} × {columns} chips are too many: at most 16")
    if options.height < rows * columns or options.width < columns:
        parser.error("give every chip an element of the result, and a column of the matrix")

    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((options.height, options.width), np.float32)
    vector = rng.standard_normal(options.width, np.float32)
    wanted = plain_numpy(matrix, vector)
    grid = Grid(rows, columns, *matrix.shape)
    with Worker(level=3, device_ids=grid.chips) as w:
        handle = w.register(ChipCallable.from_kernel(multiply))
        a = [
            [w.share(share(share(matrix, rows, r).T, columns, c).T) for c in range(columns)]
            for r in range(rows)
        ]
        y = w.empty(options.height)
        w.run(product(grid, handle, a, w.share(vector), y))
        deviation = np.abs(y - wanted).max() / np.abs(wanted).max()
    print(f"{options.height} × {options.width} on {rows} × {columns} chips")
    print(f"domains: {rows + columns}, each chip in 2")
    print(f"deviation from numpy: {deviation:.1e}")
    if not deviation < TOLERANCE:
        sys.exit("the result deviates too much")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
