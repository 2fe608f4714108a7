"""What an instruction of NVIDIA's GPUs is, and how numba.cuda is taught one. `sparsenet.instructions` lists them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction, for `compiling.with_cuda` to put in place."""

    name: str
    arguments: str
    """One letter each: f float32, r uint32, p an element of an array, which is two arguments (array, place)"""
    results: str
    """Letters f and r; more than one make a tuple"""
    twin: Callable
    """What it does: of arguments, returns results. For a warp: twin(lane, given (32, arguments)) returns the results of
    one lane; uint32 numbers hold the bits of each lane's arguments"""
    ptx: str = ""
    """Its text; $0, $1, … are results, then arguments. Empty: memory accesses that LLVM has words for"""
    capability: tuple[int, int] = (7, 5)
    """Least compute capability of a GPU that has it"""
    warp: bool = False
    """Executed by the 32 threads of a warp together"""

    def __call__(self, *arguments: Any) -> Any:
        """In the simulator, which runs plain Python."""
        if self.warp:
            raise NotImplementedError(f"{self.name} is for a whole warp, which the simulator does not have; the "
                                      "emulator in sparsenet.testing runs it")
        return self.twin(*arguments)


@functools.cache
def lowered(instruction: Instruction, intrinsic: Callable, make_array: Callable) -> Any:
    """The Numba intrinsic that a CUDA kernel calls. intrinsic and make_array are functions of numba-cuda."""
    from llvmlite import ir
    from numba import types
    from numba.core.errors import TypingError

    kinds = {"f": (types.float32, ir.FloatType()), "r": (types.uint32, ir.IntType(32))}
    made = [kinds[letter] for letter in instruction.results]
    returns = (types.void if not made else made[0][0] if len(made) == 1 else
               types.Tuple([kind for kind, _ in made]))
    quad = ir.VectorType(ir.FloatType(), 4)

    def typed(given: tuple) -> list:
        """Numba's types of the arguments as they are wanted."""
        wanted, rest = [], list(given)
        for letter in instruction.arguments:
            first = rest.pop(0)
            if letter != "p":
                wanted.append(kinds[letter][0])
                continue
            if (getattr(first, "layout", None), str(getattr(first, "dtype", None))) != ("C", "float32"):
                raise TypingError(f"{instruction.name}: expected a C-contiguous float32 array, got {first}")
            wanted += [first, rest.pop(0)]
        return wanted

    def operands(context: Any, builder: Any, signature: Any, values: Any) -> list:
        """LLVM's values, an address for each (array, place)."""
        found, rest = [], list(zip(signature.args, values, strict=True))
        for letter in instruction.arguments:
            kind, value = rest.pop(0)
            if letter == "p":
                data = make_array(kind)(context, builder, value).data
                found.append(builder.gep(data, [rest.pop(0)[1]]))
            else:
                found.append(value)
        return found

    def accesses(builder: Any, values: list) -> list:
        place = builder.bitcast(values[0], quad.as_pointer())
        if made:
            loaded = builder.load(place, align=16)
            return [builder.extract_element(loaded, ir.Constant(ir.IntType(32), k)) for k in range(4)]
        stored = ir.Constant(quad, ir.Undefined)
        for k, value in enumerate(values[1:]):
            stored = builder.insert_element(stored, value, ir.Constant(ir.IntType(32), k))
        builder.store(stored, place, align=16)
        return []

    def executes(builder: Any, values: list) -> list:
        words = ir.IntType(64)
        values = [builder.ptrtoint(value, words) if isinstance(value.type, ir.PointerType) else value
                  for value in values]
        types_ = [kind for _, kind in made]
        result = ir.VoidType() if not made else types_[0] if len(made) == 1 else ir.LiteralStructType(types_)
        letters = {"p": "l"}
        constraints = ([f"={letter}" for letter in instruction.results]
                       + [letters.get(letter, letter) for letter in instruction.arguments])
        if not made:
            constraints.append("~{memory}")
        text = ir.InlineAsm(ir.FunctionType(result, [value.type for value in values]), instruction.ptx,
                            ",".join(constraints), side_effect=instruction.warp or not made)
        answer = builder.call(text, values)
        return [answer] if len(made) == 1 else [builder.extract_value(answer, k) for k in range(len(made))]

    def typing(typing_context: Any, *given: Any) -> Any:
        signature = returns(*typed(given))

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            values = operands(context, builder, signature, values)
            results = executes(builder, values) if instruction.ptx else accesses(builder, values)
            if len(results) > 1:
                return context.make_tuple(builder, signature.return_type, results)
            return results[0] if results else context.get_dummy_value()
        return signature, generate

    define: Any = typing
    define.__name__ = define.__qualname__ = instruction.name
    define.content = (instruction.name, instruction.arguments, instruction.results, instruction.ptx,
                      lowered.__wrapped__.__code__)  # for kernel_cache
    names = ["typing_context", *(f"x{i}" for i in range(sum(2 if c == "p" else 1 for c in instruction.arguments)))]
    define.__signature__ = inspect.Signature(  # Numba wants their number
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])
    return intrinsic(define)
