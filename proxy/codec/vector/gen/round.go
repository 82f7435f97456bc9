package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// rounder rounds to float16.
func rounder() {
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
		VPMINUD(most, size, limited)
		VPBLENDVB(finite, limited, size, limited) // what is not finite stays that
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
		bits := GP32()
		VMOVMSKPS(finite, bits)
		NOTL(bits)
		ANDL(Imm(0xff), bits)
		POPCNTL(bits, bits)
		ADDQ(bits.As64(), count)
	})
	Store(count, ReturnIndex(0))
	end()
}
