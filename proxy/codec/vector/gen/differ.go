package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// differs emits the function that compares bits. The processor has an instruction for
// equality alone, so the result is inverted. Integer comparison is what [Differ]
// promises: NaNs equal themselves, and the two zeros differ.
func differs() {
	function("differ4AVX2", "func(a, b *byte, n int, mask *uint64)",
		"differ4AVX2 is Differ for n numbers of 4 bytes, a multiple of 32 and more than none.")
	// A vector of ones turns the equality into its inverse.
	a, b := Load(Param("a"), GP64()), Load(Param("b"), GP64())
	n, mask := Load(Param("n"), GP64()), Load(Param("mask"), GP64())
	order, ones := inRegister(interleave()), YMM()
	VPCMPEQD(ones, ones, ones)
	loop(n, 32, func(done GPVirtual) {
		mask32(mask, done, order, func(v int) VecVirtual {
			y := YMM()
			VMOVDQU(Mem{Base: a, Index: done, Scale: 4, Disp: v * 32}, y)
			VPCMPEQD(Mem{Base: b, Index: done, Scale: 4, Disp: v * 32}, y, y)
			VPXOR(ones, y, y)
			return y
		})
	})
	end()
}
