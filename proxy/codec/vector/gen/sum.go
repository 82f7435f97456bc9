package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// sums emits the functions that add one slice of numbers to another. Sums of 16-bit floats
// are left to the portable code.
func sums() {
	for _, s := range []struct {
		name, kind string
		add        func(...Op)
	}{
		{"sumFloat32AVX2", "float32", VADDPS},
		{"sumFloat64AVX2", "float64", VADDPD},
		{"sumInt8AVX2", "int8", VPADDB},
		{"sumInt16AVX2", "int16", VPADDW},
		{"sumInt32AVX2", "int32", VPADDD},
		{"sumInt64AVX2", "int64", VPADDQ},
	} {
		// One form for all kinds: only the instruction that adds differs. 128 bytes
		// are four vectors, whose additions do not depend on each other. The loads
		// are unaligned ones, which cost nothing extra on aligned data.
		function(s.name, "func(dst, src *byte, n int)",
			s.name+" adds the "+s.kind+" numbers in n bytes, a multiple of 128 and more than none, to dst.")
		dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
		loop(n, 128, func(done GPVirtual) {
			for v := range 4 {
				y := YMM()
				VMOVDQU(Mem{Base: dst, Index: done, Scale: 1, Disp: v * 32}, y)
				s.add(Mem{Base: src, Index: done, Scale: 1, Disp: v * 32}, y, y)
				VMOVDQU(y, Mem{Base: dst, Index: done, Scale: 1, Disp: v * 32})
			}
		})
		end()
	}
}
