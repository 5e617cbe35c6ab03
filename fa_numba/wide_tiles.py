"""Products of tiles with eight by eight numbers a thread: the fast form of :mod:`fa_numba.tiles`, in float32.

A thread has eight rows of the result, so that what it reads from shared memory goes into twice as many products as with
four; then registers, not shared memory, set the pace. Some things follow from that:

- A multiply-add that reads three registers takes a cycle more than one that has an operand left from the one before.
  So sums of outer products go down one column and up the next, and S is such a sum as well: Q and K are turned around.
- The threads of a block stand in ``down`` rows by ``across`` columns (8 or 16), and a warp owns whole rows of scores.
  What a warp writes to shared memory for itself needs no barrier of the block.
- Neighbouring lanes have different rows and the same columns: then a 128-bit read of shared memory, by a whole warp,
  takes two steps instead of four.
- Loops that the compiler must unroll, lest registers become memory, are short; longer ones are written out.
"""

from numba import cuda, float32, int32

from fa_numba.primitives import FULL_MASK, WARP, copy1, copy4, load2, load4, store4
from fa_numba.tiles import PAD, load_tile

R8 = 8  # rows in a thread's register tile
PRODUCTS = 16  # that are written out one after another
PAD_P = 8  # of a row of p, where two rows of threads by four keys share a read of 128 bytes


@cuda.jit(device=True, forceinline=True)
def place(across):
    """Return where a thread stands: its column x, its row y among the threads, and its first row of the tile.

    Its rows of the tile lie WARP / across apart, so that those of a warp are neighbours.
    """
    t = cuda.threadIdx.x
    lanes_down = WARP // across
    x = t // 2 % across
    lane_row = t % 2 + t % WARP // (2 * across) * 2
    return x, t // WARP * lanes_down + lane_row, t // WARP * lanes_down * R8 + lane_row


@cuda.jit(device=True, forceinline=True)
def copy_wide_tile(tile, x, b, first, length, width, threads, asynchronous):
    """tile[r, c] = x[b, first + r, c], and 0 past the ends of x.

    If it is asynchronous, it may only have begun: the tile is there after ``wait_for_copies``.
    """
    across = width // 4  # threads for a row
    even = threads % across == 0 and length * across % threads == 0  # all threads copy equally many rows
    if even and x.shape[2] == width and first + length <= x.shape[1]:
        row, c = cuda.threadIdx.x // across, 4 * (cuda.threadIdx.x % across)
        start = (b * x.shape[1] + first + row) * width + c  # from here on, all offsets are constants
        to = row * (width + PAD) + c
        rows = threads // across
        for n in range(length // rows):
            if asynchronous:
                copy4(tile, to + n * rows * (width + PAD), x, start + n * rows * width)
            else:
                store4(tile, to + n * rows * (width + PAD), load4(x, start + n * rows * width))
    else:
        load_tile(tile, x, b, first, length, width, threads)


@cuda.jit(device=True, forceinline=True)
def copy_column(tile, x, b, i, slot, stride, width, asynchronous):
    """tile[c, slot] = x[b, i, c] for every eighth c, from the thread's own on, and 0 past the ends of x."""
    for c in range(cuda.threadIdx.x % 8, width, 8):
        if i >= x.shape[1] or c >= x.shape[2]:
            tile[c * stride + slot] = float32(0)
        elif asynchronous:
            copy1(tile, c * stride + slot, x, (b * x.shape[1] + i) * x.shape[2] + c)
        else:
            tile[c * stride + slot] = x[b, i, c]


@cuda.jit(device=True, forceinline=True)
def copy_turned_rows(tile, x, b, first, down, lanes_down, width, threads, asynchronous):
    """tile[c, slot of r] = x[b, first + r, c]: turned around, where load_eight finds a thread's eight rows."""
    for slot in range(cuda.threadIdx.x // 8, R8 * down, threads // 8):
        y, r = slot // 4 % down, slot // (4 * down) * 4 + slot % 4
        i = first + y // lanes_down * lanes_down * R8 + y % lanes_down + r * lanes_down
        copy_column(tile, x, b, i, slot, R8 * down + PAD_P, width, asynchronous)


@cuda.jit(device=True, forceinline=True)
def copy_turned_tile(tile, x, b, first, length, across, width, threads, asynchronous):
    """tile[c, slot of r] = x[b, first + r, c]: turned around, so that a thread's columns are neighbours.

    Its column j is row x + j across; four of them, or the two that are left, lie side by side. Eight lanes, and so a
    whole sector of 32 bytes, are of one row of x, and four of neighbouring slots: they meet in no memory bank.
    """
    warps = threads // WARP
    fours = length // (4 * across) * 4 * across
    even = across % warps == 0 and (length - fours) // 4 % warps == 0  # all warps copy equally many fours of slots
    if even and asynchronous and x.shape[2] == width and first + length <= x.shape[1]:
        warp, lane, c = cuda.threadIdx.x // WARP, cuda.threadIdx.x // 8 % 4, cuda.threadIdx.x % 8
        x_first = (b * x.shape[1] + first) * width + c
        start = x_first + (warp + lane * across) * width  # from here on, all offsets are constants
        to = c * (length + PAD) + 4 * warp + lane
        for n in range(0, fours // 4, warps):
            i = n // across * 4 * across + n % across
            copy_far(tile, to + 4 * n, length + PAD, x, start + i * width, width)
        start = x_first + (fours + 2 * warp + lane // 2 + lane % 2 * across) * width
        for n in range(0, (length - fours) // 4, warps):
            copy_far(tile, to + fours + 4 * n, length + PAD, x, start + 2 * n * width, width)
    else:
        for slot in range(cuda.threadIdx.x // 8, length, threads // 8):
            if slot < fours:
                i = slot // (4 * across) * 4 * across + slot // 4 % across + slot % 4 * across
            else:
                i = fours + (slot - fours) // 2 + slot % 2 * across
            copy_column(tile, x, b, first + i, slot, length + PAD, width, asynchronous)


@cuda.jit(device=True, forceinline=True)
def copy_far(tile, to, stride, x, start, width):
    """Begin to copy every eighth number of a row to every eighth row of the tile."""
    for c in range(0, width, 8):
        copy1(tile, to + c * stride, x, start + c)


@cuda.jit(device=True, forceinline=True)
def add_column(s, a, b_four, j):
    """s[r, j] += sum_e a[r, e] b[e]."""
    for e in range(4):
        for r in range(R8):
            s[r, j] += a[r, e] * b_four[e]


@cuda.jit(device=True, forceinline=True)
def add_four_terms(s, a, row, lanes_down, b, x, across, width, c):
    """s[r, j] += the four terms of their dot product from column c on."""
    four = cuda.local.array((R8, 4), float32)
    stride = width + PAD
    for r in range(R8):
        a_four = load4(a, (row + r * lanes_down) * stride + c)
        for e in range(4):
            four[r, e] = a_four[e]
    add_column(s, four, load4(b, x * stride + c), 0)
    add_column(s, four, load4(b, (x + across) * stride + c), 1)
    if s.shape[1] > 2:
        add_column(s, four, load4(b, (x + 2 * across) * stride + c), 2)
    if s.shape[1] > 3:
        add_column(s, four, load4(b, (x + 3 * across) * stride + c), 3)


@cuda.jit(device=True, forceinline=True)
def add_wide_dots(s, a, row, b, x, across, width):
    """s[r, j] += sum_c a[row of r, c] b[x + j across, c], over the width of both tiles, for two to four columns j."""
    for c in range(0, width, 8):
        add_four_terms(s, a, row, WARP // across, b, x, across, width, c)
        add_four_terms(s, a, row, WARP // across, b, x, across, width, c + 4)


@cuda.jit(device=True, forceinline=True)
def store_wide(p_tile, s, x, y, across, down):
    """p_tile[column, row] = s: turned around, so that a thread finds its eight rows of one column in two reads."""
    for j in range(s.shape[1]):
        for h in range(0, R8, 4):
            index = (x + j * across) * (R8 * down + PAD_P) + h * down + 4 * y
            store4(p_tile, index, (s[h, j], s[h + 1, j], s[h + 2, j], s[h + 3, j]))


@cuda.jit(device=True, forceinline=True)
def load_eight(p, p_tile, k, y, down):
    """p[r] = p_tile[k, row of r]: what :func:`store_wide` has written."""
    for h in range(0, R8, 4):
        four = load4(p_tile, k * (R8 * down + PAD_P) + h * down + 4 * y)
        for e in range(4):
            p[h + e] = four[e]


@cuda.jit(device=True, forceinline=True)
def add_outer_product(acc, p_tile, y, down, v, x, across, width, k):
    """acc[r, c] += p[row of r, k] v[k, col(c)]; the columns of :func:`fa_numba.tiles.add_products`, a pair at the end.

    Down one column and up the next: then two neighbouring multiply-adds have a factor in common, and the second reads a
    register less. An instruction that reads three takes a cycle more.
    """
    p = cuda.local.array(R8, float32)
    load_eight(p, p_tile, k, y, down)
    groups = acc.shape[1] // 4
    for g in range(groups):
        four = load4(v, k * (width + PAD) + 4 * (x + g * across))
        for c in range(0, 4, 2):
            for r in range(R8):
                acc[r, 4 * g + c] += p[r] * four[c]
            for r in range(R8):
                acc[R8 - 1 - r, 4 * g + c + 1] += p[R8 - 1 - r] * four[c + 1]
    if acc.shape[1] % 4 == 2:
        two = load2(v, k * (width + PAD) + 4 * groups * across + 2 * x)
        for r in range(R8):
            acc[r, 4 * groups] += p[r] * two[0]
        for r in range(R8):
            acc[R8 - 1 - r, 4 * groups + 1] += p[R8 - 1 - r] * two[1]


@cuda.jit(device=True, forceinline=True)
def add_eight_products(acc, p_tile, y, down, v, x, across, width, k):
    """acc[r, c] += sum_k p[row of r, k] v[k, col(c)], over eight k."""
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 1)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 2)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 3)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 4)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 5)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 6)
    add_outer_product(acc, p_tile, y, down, v, x, across, width, k + 7)


@cuda.jit(device=True, forceinline=True)
def add_wide_products(acc, p_tile, y, down, v, x, across, length, width):
    """acc[r, c] += sum_k p[row of r, k] v[k, col(c)], over the length keys of tile v, a multiple of PRODUCTS."""
    for k in range(0, length, PRODUCTS):
        add_eight_products(acc, p_tile, y, down, v, x, across, width, k)
        add_eight_products(acc, p_tile, y, down, v, x, across, width, k + 8)


@cuda.jit(device=True, forceinline=True)
def add_turned_dots(s, a, y, down, b, x, across, width):
    """s[r, j] += sum_c a[row of r, c] b[x + j across, c], over the width, a multiple of eight; both tiles turned."""
    for c in range(0, width, 8):
        add_eight_products(s, a, y, down, b, x, across, s.shape[1] * across, c)


@cuda.jit(device=True, forceinline=True)
def add_visible_wide_products(acc, p_tile, y, down, v, x, across, first, end, width, direction, most):
    """As add_wide_products over k from first to end, but a row takes only the k it sees: what is hidden may be NaN.

    The thread's row r sees the k with direction * (k - r WARP / across) <= most.
    """
    p = cuda.local.array(R8, float32)
    for k in range(first, end):
        load_eight(p, p_tile, k, y, down)
        distance = direction * int32(k) - most
        for g in range(acc.shape[1] // 4):
            four = load4(v, k * (width + PAD) + 4 * (x + g * across))
            for r in range(R8):
                if distance <= direction * r * (WARP // across):
                    for c in range(4):
                        acc[r, 4 * g + c] += p[r] * four[c]


@cuda.jit(device=True, forceinline=True)
def wide_row_max(value, across):
    """The maximum over the threads that share a row."""
    if across == 16:
        value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, 16))
    value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, 8))
    value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, 4))
    return max(value, cuda.shfl_xor_sync(FULL_MASK, value, 2))


@cuda.jit(device=True, forceinline=True)
def wide_row_sum(value, across):
    """The sum over the threads that share a row."""
    if across == 16:
        value += cuda.shfl_xor_sync(FULL_MASK, value, 16)
    value += cuda.shfl_xor_sync(FULL_MASK, value, 8)
    value += cuda.shfl_xor_sync(FULL_MASK, value, 4)
    return value + cuda.shfl_xor_sync(FULL_MASK, value, 2)


@cuda.jit(device=True, forceinline=True)
def store_wide_rows(out, acc, b, first, x, across, adds):
    """out[b, first + r WARP / across, col(c)] = acc[r, c], as far as out reaches; or +=, for rows of whole fours."""
    whole = out.shape[2] % 4 == 0  # every row of out starts at a multiple of 16 bytes
    for r in range(R8):
        i = first + r * (WARP // across)
        for g in range(acc.shape[1] // 4):
            column = 4 * (x + g * across)
            if whole and i < out.shape[1] and column < out.shape[2]:
                old = load4(out, (b, i, column)) if adds else (float32(0), float32(0), float32(0), float32(0))
                new = (old[0] + acc[r, 4 * g], old[1] + acc[r, 4 * g + 1])
                store4(out, (b, i, column), (*new, old[2] + acc[r, 4 * g + 2], old[3] + acc[r, 4 * g + 3]))
    if not whole:
        for r in range(R8):
            i = first + r * (WARP // across)
            for c in range(acc.shape[1]):
                column = c // 4 * 4 * across + 4 * x + c % 4
                if i < out.shape[1] and column < out.shape[2]:
                    out[b, i, column] = acc[r, c]
