package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// rounders emits the functions that round to numbers of 16 bits, and those that widen them.
func rounders() {
	roundToFloat16()
	roundToBFloat16()
	widener("fromFloat16AVX2", "float16", func(g Mem, y VecVirtual) { VCVTPH2PS(g, y) })
	widener("fromBFloat16AVX2", "bfloat16", func(g Mem, y VecVirtual) {
		VPMOVZXWD(g, y)
		VPSLLD(Imm(16), y, y)
	})
}

// widener emits the function that widens numbers of a kind. It loads a whole vector before
// it stores one, so that dst may overlap src as package vector allows.
func widener(name, kind string, load func(Mem, VecVirtual)) {
	function(name, "func(dst, src *byte, n int)", name+" makes float32 numbers of n "+kind+" ones, a multiple of 8 and more than none.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	loop(n, 8, func(done GPVirtual) {
		y := YMM()
		load(Mem{Base: src, Index: done, Scale: 2}, y)
		VMOVUPS(y, Mem{Base: dst, Index: done, Scale: 4})
	})
	end()
}

// countClear adds to count how many of eight lanes, all ones or all zeros, are zeros.
func countClear(lanes VecVirtual, count GPVirtual) {
	bits := GP32()
	VMOVMSKPS(lanes, bits)
	NOTL(bits)
	ANDL(Imm(0xff), bits)
	POPCNTL(bits, bits)
	ADDQ(bits.As64(), count)
}

// nearest16 rounds finite numbers to the upper 16 of their bits, to the nearest, ties to
// even, and sets h to these. x and h may be the same register.
func nearest16(x, h VecVirtual) {
	t := YMM()
	VPSRLD(Imm(16), x, t)
	VPAND(constant("one", 1), t, t)
	VPADDD(constant("half", 0x7fff), t, t)
	VPADDD(x, t, t)
	VPSRLD(Imm(16), t, h)
}

// storeLower16 stores the lower 16 bits of eight lanes, whose upper ones are clear.
func storeLower16(y VecVirtual, to Mem) {
	VPACKUSDW(y, y, y)
	VPERMQ(Imm(0x08), y, y)
	VMOVDQU(y.AsX(), to)
}

// roundToBFloat16 emits RoundToBFloat16. There is no instruction for it in AVX2: finite
// numbers are rounded by adding, NaNs are made quiet, and what would become infinite is
// made the largest finite number.
func roundToBFloat16() {
	function("roundToBFloat16AVX2", "func(dst *byte, v *float32, n int) int",
		"roundToBFloat16AVX2 is RoundToBFloat16 for n numbers, a multiple of 8 and more than none.")
	dst, v, n := Load(Param("dst"), GP64()), Load(Param("v"), GP64()), Load(Param("n"), GP64())
	magnitude, infinity := magnitude32(), inRegister(constant("infinity", 0x7f800000))
	count := GP64()
	XORQ(count, count)
	loop(n, 8, func(done GPVirtual) {
		x, size, finite, h, t := YMM(), YMM(), YMM(), YMM(), YMM()
		VMOVUPS(Mem{Base: v, Index: done, Scale: 4}, x)
		VANDPS(magnitude, x, size)
		VPCMPGTD(size, infinity, finite)
		nearest16(x, h)
		VPAND(constant("magnitude16", 0x7fff), h, t) // infinity, of a finite number: one less
		VPCMPEQD(constant("infinity16", 0x7f80), t, t)
		VPAND(finite, t, t)
		VPADDD(t, h, h)
		// A NaN's upper half could be an infinity, if its payload is in the lower
		// one: the quiet bit is set.
		nan, quiet := YMM(), YMM()
		VPCMPGTD(infinity, size, nan)
		VPSRLD(Imm(16), x, quiet)
		VPOR(constant("quiet16", 0x40), quiet, quiet)
		VPBLENDVB(nan, quiet, h, h)
		// What was written, as a float32; the difference from x is exact, and is what
		// rounding took.
		VPSLLD(Imm(16), h, t)
		VSUBPS(t, x, t)
		VANDPS(finite, t, t)
		VMOVUPS(t, Mem{Base: v, Index: done, Scale: 4})
		storeLower16(h, Mem{Base: dst, Index: done, Scale: 2})
		countClear(finite, count)
	})
	Store(count, ReturnIndex(0))
	end()
}

// roundToFloat16 emits RoundToFloat16. The processor rounds; magnitudes are limited to
// 65504 before, so that finite numbers stay finite. What rounding took is computed from the
// result, widened again, and zeroed where it is not finite.
func roundToFloat16() {
	function("roundToFloat16AVX2", "func(dst *byte, v *float32, n int) int",
		"roundToFloat16AVX2 is RoundToFloat16 for n numbers, a multiple of 8 and more than none.")
	dst, v, n := Load(Param("dst"), GP64()), Load(Param("v"), GP64()), Load(Param("n"), GP64())
	magnitude, infinity := magnitude32(), inRegister(constant("infinity", 0x7f800000))
	most, count := inRegister(constant("mostFloat16", 0x477fe000)), GP64() // 65504
	XORQ(count, count)
	loop(n, 8, func(done GPVirtual) {
		x, size, finite, limited := YMM(), YMM(), YMM(), YMM()
		VMOVUPS(Mem{Base: v, Index: done, Scale: 4}, x)
		VANDPS(magnitude, x, size)
		VPCMPGTD(size, infinity, finite)
		// As integers: magnitudes compare as their bits do.
		VPMINUD(most, size, limited)
		VPBLENDVB(finite, limited, size, limited) // what is not finite stays that
		// The limited magnitude with the sign of x.
		sign := YMM()
		VPANDN(x, magnitude, sign)
		VPOR(sign, limited, limited)
		h, rest := XMM(), YMM()
		VCVTPS2PH(Imm(0), limited, h) // to the nearest, ties to even
		VMOVDQU(h, Mem{Base: dst, Index: done, Scale: 2})
		VCVTPH2PS(h, rest)
		VSUBPS(rest, x, rest)
		VANDPS(finite, rest, rest)
		VMOVUPS(rest, Mem{Base: v, Index: done, Scale: 4})
		countClear(finite, count)
	})
	Store(count, ReturnIndex(0))
	end()
}
