"""Products of tiles in shared memory, summed up in registers: what attention kernels spend their time on.

A tile is a matrix in shared memory, row after row, each row padded by four elements so that threads that read the same
columns of different rows do not meet in the same memory bank. The threads of a block form a grid of ``rows`` by
``columns``; a thread keeps a register tile: four rows of the result, ``rows`` apart, and some of its columns. Every
operand is read four elements at a time, and each element that was read is used four times.
"""

from numba import cuda, float32

from fa_numba.primitives import load, load4, store

PAD = 4
R = 4  # rows, and columns of scores, in a thread's register tile


@cuda.jit(device=True, forceinline=True)
def load_tile(tile, x, b, first, length, width, threads):
    """tile[r, c] = x[b, first + r, c], and 0 past the ends of x; a thread loads four columns at a time."""
    four = cuda.local.array(4, x.dtype)
    across = min(width // 4, threads)  # threads for one row
    down = threads // across  # rows at a time
    aligned = x.shape[2] % 4 == 0  # every row of x starts at a multiple of 16 bytes
    if cuda.threadIdx.x < across * down:
        for r in range(cuda.threadIdx.x // across, length, down):
            for c in range(4 * (cuda.threadIdx.x % across), width, 4 * across):
                if aligned and first + r < x.shape[1] and c < x.shape[2]:
                    load(four, x, (b, first + r, c))
                else:
                    for e in range(4):
                        inside = first + r < x.shape[1] and c + e < x.shape[2]
                        four[e] = x[b, first + r, c + e] if inside else float32(0)
                store(tile, r * (width + PAD) + c, four)


@cuda.jit(device=True, forceinline=True)
def clear(s):
    """s[r, c] = 0, for a register tile."""
    for r in range(s.shape[0]):
        for c in range(s.shape[1]):
            s[r, c] = 0


@cuda.jit(device=True, forceinline=True)
def multiply(acc, factor):
    """acc[r, c] *= factor, for a register tile."""
    for r in range(acc.shape[0]):
        for c in range(acc.shape[1]):
            acc[r, c] *= factor


@cuda.jit(device=True, forceinline=True)
def add_dots(s, a, a_row, rows, b, b_row, columns, width):
    """s[r, j] += sum_c a[a_row + r rows, c] b[b_row + j columns, c], over the width of tiles a and b."""
    x = cuda.local.array((R, 4), a.dtype)
    for c in range(0, width, 4):
        for r in range(R):
            four = load4(a, (a_row + r * rows) * (width + PAD) + c)
            for e in range(4):
                x[r, e] = four[e]
        for j in range(R):
            y = load4(b, (b_row + j * columns) * (width + PAD) + c)
            for r in range(R):
                for e in range(4):
                    s[r, j] += x[r, e] * y[e]


@cuda.jit(device=True, forceinline=True)
def add_products(acc, p, p_row, rows, v, column, columns, length, width):
    """acc[r, c] += sum_k p[p_row + r rows, k] v[k, col(c)], over the length keys of tile v.

    A thread owns four neighbouring columns of v in every 4 * columns: col(4 g + e) = 4 (column + g columns) + e.
    """
    x = cuda.local.array((R, 4), p.dtype)
    for k in range(0, length, 4):
        for r in range(R):
            four = load4(p, (p_row + r * rows) * (length + PAD) + k)
            for e in range(4):
                x[r, e] = four[e]
        for g in range(width // (4 * columns)):
            for e in range(4):
                y = load4(v, (k + e) * (width + PAD) + 4 * (column + g * columns))
                for r in range(R):
                    for c in range(4):
                        acc[r, 4 * g + c] += x[r, e] * y[c]


@cuda.jit(device=True, forceinline=True)
def add_visible_products(acc, p, p_row, rows, v, column, columns, length, width, direction, most):
    """As add_products, but only over the k that row i of p sees, those with direction * (k - i) <= most.

    What a causal mask hides may be NaN, and 0 times NaN is NaN: select, do not multiply.
    """
    for k in range(length):
        for g in range(width // (4 * columns)):
            y = load4(v, k * (width + PAD) + 4 * (column + g * columns))
            for r in range(R):
                i = p_row + r * rows
                if direction * (k - i) <= most:
                    for c in range(4):
                        acc[r, 4 * g + c] += p[i * (length + PAD) + k] * y[c]
