"""Device functions that every step shares; the only place that writes LLVM instructions.

``load4(array, index)`` returns four neighbouring elements as a tuple, ``store4(array, index, values)`` writes four: in
one 128-bit instruction for float32 (PTX ISA, ``ld.v4.f32`` and ``st.v4.f32``), in two for float64. The array is float32
or float64, in global or shared memory, and C-contiguous; ``index`` is a number or, for several axes, a tuple of
numbers, and lies at a multiple of 16 bytes. A shared array needs ``alignment=16``. ``load2`` is the same for two.

``copy4(to, to_index, array, index)`` and ``copy1`` begin to copy float32 from global to shared memory, past the
registers (PTX ISA, ``cp.async``; compute capability 8.0 or later). They are there for the thread that began to copy
them after its ``wait_for_copies()``, for others after a barrier behind it.

``load`` and ``store`` move a run of one or four elements between an array and a thread's registers, by the same
instructions.

``warp_max`` and ``warp_sum`` combine a value over the 32 lanes of a warp and give all the result: in five rounds, each
lane exchanges with the lane whose number differs in one bit (PTX ISA, ``shfl.sync.bfly``).
"""

from numba import cuda

from fa_numba.selection import SIMULATOR, select

WARP = 32
FULL_MASK = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_max(value):
    """Return the maximum over the lanes of a full warp."""
    for shift in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, shift))
    return value


@cuda.jit(device=True)
def warp_sum(value):
    """Return the sum over the lanes of a full warp."""
    for shift in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL_MASK, value, shift)
    return value


if select().device == SIMULATOR:
    from fa_numba.simulator.wide import copy1, copy4, load2, load4, part, store4, wait_for_copies
else:
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic

    _ALIGNMENT = 16
    _SHARED = 3  # the address space

    def _vector_pointer(context, builder, array_type, array, index_type, index, length=4):
        """Return the address of an element as a pointer to a vector of so many."""
        array = context.make_array(array_type)(context, builder, array)
        if isinstance(index_type, types.BaseTuple):
            indices = cgutils.unpack_tuple(builder, index)
            pointer = cgutils.get_item_pointer(context, builder, array_type, array, indices, wraparound=False)
        else:
            pointer = builder.gep(array.data, [index])
        vector = ir.VectorType(context.get_data_type(array_type.dtype), length)
        return builder.bitcast(pointer, vector.as_pointer()), vector

    def _index_type(array, index):
        if array.layout != "C" or array.dtype not in (types.float32, types.float64):
            raise TypeError(f"4-wide access needs a C-contiguous float32 or float64 array, not {array}")
        return types.UniTuple(types.intp, array.ndim) if isinstance(index, types.BaseTuple) else types.intp

    def _load(array, index, length):
        """Return signature and code of a load of neighbouring elements."""
        signature = types.UniTuple(array.dtype, length)(array, _index_type(array, index))

        def generate(context, builder, signature, arguments):
            array_type, index_type = signature.args
            pointer, _ = _vector_pointer(context, builder, array_type, arguments[0], index_type, arguments[1], length)
            vector = builder.load(pointer, align=_ALIGNMENT * length // 4)
            elements = [builder.extract_element(vector, ir.Constant(ir.IntType(32), i)) for i in range(length)]
            return context.make_tuple(builder, signature.return_type, elements)

        return signature, generate

    @intrinsic
    def load2(typing_context, array, index):
        """Return the two elements from ``index`` on."""
        return _load(array, index, 2)

    @intrinsic
    def load4(typing_context, array, index):
        """Return the four elements from ``index`` on."""
        return _load(array, index, 4)

    @intrinsic
    def store4(typing_context, array, index, values):
        """Write four elements from ``index`` on."""
        signature = types.void(array, _index_type(array, index), types.UniTuple(array.dtype, 4))

        def generate(context, builder, signature, arguments):
            array_type, index_type, _ = signature.args
            pointer, vector_type = _vector_pointer(context, builder, array_type, arguments[0], index_type, arguments[1])
            vector = ir.Constant(vector_type, ir.Undefined)
            for i, value in enumerate(cgutils.unpack_tuple(builder, arguments[2])):
                vector = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), i))
            builder.store(vector, pointer, align=_ALIGNMENT)
            return context.get_dummy_value()

        return signature, generate

    def _copy(to, to_index, array, index, instruction, length):
        """Return signature and code of an asynchronous copy of so many float32, from global to shared memory."""
        if to.dtype != types.float32 or array.dtype != types.float32:
            raise TypeError(f"only float32 is copied to float32, not {array} to {to}")
        signature = types.void(to, _index_type(to, to_index), array, _index_type(array, index))

        def generate(context, builder, signature, arguments):
            to_type, to_index_type, array_type, index_type = signature.args
            target, _ = _vector_pointer(context, builder, to_type, arguments[0], to_index_type, arguments[1], length)
            source, _ = _vector_pointer(context, builder, array_type, arguments[2], index_type, arguments[3], length)
            shared = builder.addrspacecast(target, target.type.pointee.as_pointer(_SHARED))
            addresses = [builder.ptrtoint(shared, ir.IntType(32)), builder.ptrtoint(source, ir.IntType(64))]
            kind = ir.FunctionType(ir.VoidType(), [address.type for address in addresses])
            text = f"{instruction} [$0], [$1], {4 * length};"
            builder.call(ir.InlineAsm(kind, text, "r,l,~{memory}", side_effect=True), addresses)
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def copy1(typing_context, to, to_index, array, index):
        """Begin to copy one float32 from ``index`` of a global array to ``to_index`` of a shared one."""
        return _copy(to, to_index, array, index, "cp.async.ca.shared.global", 1)

    @intrinsic
    def copy4(typing_context, to, to_index, array, index):
        """Begin to copy four float32 from ``index`` of a global array on to ``to_index`` of a shared one."""
        return _copy(to, to_index, array, index, "cp.async.cg.shared.global", 4)

    @intrinsic
    def wait_for_copies(typing_context):
        """Wait until what the thread has begun to copy is there."""

        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.InlineAsm(kind, "cp.async.wait_all;", "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def part(typing_context, array, start, length):
        """Return ``length`` elements of a one-dimensional array from ``start`` on."""
        if array.ndim != 1 or array.layout != "C":
            raise TypeError(f"part takes a one-dimensional contiguous array, not {array}")
        signature = array(array, types.intp, types.intp)

        def generate(context, builder, signature, arguments):
            array_type = signature.return_type
            whole = context.make_array(array_type)(context, builder, arguments[0])
            result = context.make_array(array_type)(context, builder)
            itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
            context.populate_array(
                result,
                data=builder.gep(whole.data, [arguments[1]]),
                shape=cgutils.pack_array(builder, [arguments[2]]),
                strides=cgutils.pack_array(builder, [itemsize]),
                itemsize=itemsize,
                meminfo=None,
            )
            return result._getvalue()

        return signature, generate


@cuda.jit(device=True, forceinline=True)
def load(values, x, index):
    """values[e] = x[index + e]: one element or, if there are four values, four in one instruction."""
    if len(values) == 4:
        four = load4(x, index)
        for e in range(4):
            values[e] = four[e]
    else:
        values[0] = x[index]


@cuda.jit(device=True, forceinline=True)
def store(y, index, values):
    """y[index + e] = values[e]: one element or, if there are four values, four in one instruction."""
    if len(values) == 4:
        store4(y, index, (values[0], values[1], values[2], values[3]))
    else:
        y[index] = values[0]


__all__ = [
    "FULL_MASK",
    "WARP",
    "copy1",
    "copy4",
    "load",
    "load2",
    "load4",
    "part",
    "store",
    "store4",
    "wait_for_copies",
    "warp_max",
    "warp_sum",
]
