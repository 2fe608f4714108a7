"""libdevice's functions, which numba-cuda calls for `math` and `cuda.libdevice`, made of the host's mathematics library
and of LLVM's own words."""

import re
from collections.abc import Iterator

_LIBRARY = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erfc", "exp", "exp10",
    "exp2", "expm1", "fdim", "fmod", "frexp", "hypot", "ilogb", "j0", "j1", "jn", "ldexp", "lgamma", "llrint",
    "llround", "log", "log10", "log1p", "log2", "logb", "modf", "nextafter", "pow", "remainder", "remquo", "scalbn",
    "sin", "sincos", "sinh", "tan", "tanh", "tgamma", "y0", "y1", "yn"))
"""Called alike in libdevice and in C, with f at the end for float"""

_LLVM = {"ceil": "ceil", "copysign": "copysign", "fabs": "fabs", "floor": "floor", "fma": "fma", "fma_rn": "fma",
         "fmax": "maxnum", "fmin": "minnum", "nearbyint": "nearbyint", "rint": "rint", "round": "round",
         "sqrt": "sqrt", "sqrt_rn": "sqrt", "trunc": "trunc"}
_ROUNDED = {"rn": "rint", "rz": "trunc", "ru": "ceil", "rd": "floor"}  # of conversions to whole numbers
_KINDS = {"float": "float", "double": "double", "int": "i32", "uint": "i32", "ll": "i64", "ull": "i64"}

_FLOATS = {  # of type T, called S by LLVM's functions, of operands %x0, %x1, …
    "add_rn": "%r = fadd T %x0, %x1",
    "sub_rn": "%r = fsub T %x0, %x1",
    "mul_rn": "%r = fmul T %x0, %x1",
    "div_rn": "%r = fdiv T %x0, %x1",
    "fdivide": "%r = fdiv T %x0, %x1",
    "rcp_rn": "%r = fdiv T 1.0, %x0",
    "rsqrt_rn": "%s = call T @llvm.sqrt.S(T %x0)\n  %r = fdiv T 1.0, %s",
    "rsqrt": "%s = call T @llvm.sqrt.S(T %x0)\n  %r = fdiv T 1.0, %s",
    "rcbrt": "%s = call T @cbrtF(T %x0)\n  %r = fdiv T 1.0, %s",
    "isnan": "%b = fcmp uno T %x0, %x0\n  %r = zext i1 %b to i32",
    "isinf": "%a = call T @llvm.fabs.S(T %x0)\n  %b = fcmp oeq T %a, 0x7FF0000000000000\n  %r = zext i1 %b to i32",
    "finite": "%a = call T @llvm.fabs.S(T %x0)\n  %b = fcmp olt T %a, 0x7FF0000000000000\n  %r = zext i1 %b to i32",
    "powi": "%y = sitofp i32 %x1 to T\n  %r = call T @powF(T %x0, T %y)",
    "saturate": "%a = call T @llvm.maxnum.S(T %x0, T 0.0)\n  %r = call T @llvm.minnum.S(T %a, T 1.0)",
    "signbit": "%i = bitcast T %x0 to I\n  %b = icmp slt I %i, 0\n  %r = zext i1 %b to i32",
}
_WIDER = "%a = {0} T %x0 to W\n  %b = {0} T %x1 to W\n  "
_INTEGERS = {  # of type T, and W of twice its bits
    "abs": "%r = call T @llvm.abs.T(T %x0, i1 false)",
    "max": "%r = call T @llvm.smax.T(T %x0, T %x1)",
    "min": "%r = call T @llvm.smin.T(T %x0, T %x1)",
    "umax": "%r = call T @llvm.umax.T(T %x0, T %x1)",
    "umin": "%r = call T @llvm.umin.T(T %x0, T %x1)",
    "brev": "%r = call T @llvm.bitreverse.T(T %x0)",
    "popc": "%n = call T @llvm.ctpop.T(T %x0)\n  %r = trunc T %n to i32",
    "clz": "%n = call T @llvm.ctlz.T(T %x0, i1 false)\n  %r = trunc T %n to i32",
    "ffs": "%n = call T @llvm.cttz.T(T %x0, i1 false)\n  %z = icmp eq T %x0, 0\n  %p = add T %n, 1\n"
           "  %s = select i1 %z, T 0, T %p\n  %r = trunc T %s to i32",
    **{sign + "hadd": _WIDER.format(extend) + "%s = add W %a, %b\n  %h = ashr W %s, 1\n  %r = trunc W %h to T"
       for sign, extend in (("", "sext"), ("u", "zext"))},
    **{sign + "rhadd": _WIDER.format(extend) + "%s = add W %a, %b\n  %o = add W %s, 1\n  %h = ashr W %o, 1\n"
                                               "  %r = trunc W %h to T"
       for sign, extend in (("", "sext"), ("u", "zext"))},
    **{sign + "mulhi": _WIDER.format(extend) + "%p = mul W %a, %b\n  %h = lshr W %p, B\n  %r = trunc W %h to T"
       for sign, extend in (("", "sext"), ("u", "zext"))},
    "mul24": "%a = shl T %x0, 8\n  %b = shl T %x1, 8\n  %c = ashr T %a, 8\n  %d = ashr T %b, 8\n  %r = mul T %c, %d",
    "umul24": "%a = and T %x0, 16777215\n  %b = and T %x1, 16777215\n  %r = mul T %a, %b",
    "sad": "%h = call T @llvm.smax.T(T %x0, T %x1)\n  %l = call T @llvm.smin.T(T %x0, T %x1)\n  %d = sub T %h, %l\n"
           "  %r = add T %d, %x2",
    "usad": "%h = call T @llvm.umax.T(T %x0, T %x1)\n  %l = call T @llvm.umin.T(T %x0, T %x1)\n  %d = sub T %h, %l\n"
            "  %r = add T %d, %x2",
}
_NAMES = {"isnand": "isnan", "isinfd": "isinf", "isfinited": "finite", "signbitd": "signbit", "fast_sincosf": "sincosf",
          "llabs": "abs", "llmax": "max", "llmin": "min", "ullmax": "umax", "ullmin": "umin", "mul64hi": "mulhi",
          "umul64hi": "umulhi"}
_BITS = ("float_as_int", "int_as_float", "double_as_longlong", "longlong_as_double")
_DECLARED = re.compile(r'^declare (\S+) @"?__nv_(\w+)"?\((.*?)\)', re.M)


def definitions(texts: list[str]) -> list[str]:
    """Modules that define the libdevice functions that the texts declare. Raises NotImplementedError for a new one."""
    return [_define(*one) for one in sorted({found for text in texts for found in _DECLARED.findall(text)})]


def _define(result: str, name: str, operands: str) -> str:
    kinds = [one.split()[0] for one in operands.split(",")]
    given = ", ".join(f"{kind} %x{i}" for i, kind in enumerate(kinds))
    body = next(_body(result, name, kinds), None)
    if body is None:
        raise NotImplementedError(f"the emulator does not know libdevice's {name}")
    declared = {f"declare {kind} {callee}({', '.join(one.split()[0] for one in values.split(','))})"
                for kind, callee, values in re.findall(r"call (\S+) (@[\w.]+)\((.*)\)", body)}
    end = "ret void" if result == "void" else f"ret {result} %r"
    return "\n".join([*sorted(declared), f'define {result} @"__nv_{name}"({given}) alwaysinline {{', f"  {body}",
                      f"  {end}", "}"])


def _body(result: str, name: str, kinds: list[str]) -> Iterator[str]:
    """LLVM code that makes %r, if it is known."""
    plain = _NAMES.get(name, name).removeprefix("fast_")
    given = ", ".join(f"{one} %x{i}" for i, one in enumerate(kinds))
    kind = "double" if "double" in kinds else "float" if "float" in kinds else kinds[0]
    stem = plain.removesuffix("f")
    conversion = re.fullmatch(r"(float|double|u?int|u?ll)2(float|double|u?int|u?ll)_(r[nzud])", plain)
    if plain in _LIBRARY or stem in _LIBRARY:
        call = f"call {result} @{plain}({given})"
        yield call if result == "void" else f"%r = {call}"
    elif plain in _BITS:
        yield f"%r = bitcast {kind} %x0 to {result}"
    elif conversion:
        yield from _conversion(*conversion.groups())
    elif kind in ("float", "double"):
        short, bits = ("f32", "i32") if kind == "float" else ("f64", "i64")
        known = (plain, stem, plain[1:], plain.replace("f_", "_"))  # as in rsqrt, rsqrtf, frsqrt_rn, fmaf_rn
        stem = next((one for one in known if one in _LLVM or one in _FLOATS), "")
        if stem in _LLVM:
            yield f"%r = call {result} @llvm.{_LLVM[stem]}.{short}({given})"
        elif stem in _FLOATS:
            text = re.sub(r"\bT\b", kind, _FLOATS[stem]).replace(".S", f".{short}")
            yield re.sub(r"\bI\b", bits, text).replace("F(", "f(" if kind == "float" else "(")
    elif (stem := plain if plain in _INTEGERS else plain.removesuffix("ll")) in _INTEGERS:
        width = int(kind[1:])
        text = re.sub(r"\bT\b", kind, _INTEGERS[stem])
        text = re.sub(r"\bW\b", f"i{2 * width}", text).replace(", B\n", f", {width}\n")
        yield text.replace("trunc i32 %n to i32", "add i32 %n, 0").replace("trunc i32 %s to i32", "add i32 %s, 0")


def _conversion(source: str, target: str, rounding: str) -> Iterator[str]:
    """Between kinds of numbers: to whole ones, the largest is the end; to floats, to the nearest only."""
    given, made = _KINDS[source], _KINDS[target]
    real = ("float", "double")
    if source in real and target not in real:
        short = "f32" if source == "float" else "f64"
        sign = "ui" if target.startswith("u") else "si"
        yield (f"%w = call {given} @llvm.{_ROUNDED[rounding]}.{short}({given} %x0)\n"
               f"  %r = call {made} @llvm.fpto{sign}.sat.{made}.{short}({given} %w)")
    elif rounding == "rn" and source not in real:
        yield f"%r = {'ui' if source.startswith('u') else 'si'}tofp {given} %x0 to {made}"
    elif rounding == "rn":
        yield f"%r = fptrunc {given} %x0 to {made}"
