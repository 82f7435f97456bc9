package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// magnitude finds the largest magnitude, as bits.
func magnitude() {
	function("maxMagnitudeAVX2", "func(values *byte, n int) uint32",
		"maxMagnitudeAVX2 returns the largest magnitude of n float32 numbers, a multiple of 32 and more than none, as bits.")
	values, n := Load(Param("values"), GP64()), Load(Param("n"), GP64())
	clear := magnitude32()
	var most [4]VecVirtual
	for v := range most {
		most[v] = YMM()
		VPXOR(most[v], most[v], most[v])
	}
	done := GP64()
	XORQ(done, done)
	Label("next")
	for v := range most {
		y := YMM()
		VPAND(Mem{Base: values, Index: done, Scale: 4, Disp: v * 32}, clear, y)
		VPMAXUD(y, most[v], most[v])
	}
	ADDQ(Imm(32), done)
	CMPQ(done, n)
	JB(LabelRef("next"))
	VPMAXUD(most[1], most[0], most[0])
	VPMAXUD(most[3], most[2], most[2])
	VPMAXUD(most[2], most[0], most[0])
	x, bits := XMM(), GP32()
	VEXTRACTI128(Imm(1), most[0], x)
	VPMAXUD(x, most[0].AsX(), x)
	y := XMM()
	VPSHUFD(Imm(0x4e), x, y)
	VPMAXUD(y, x, x)
	VPSHUFD(Imm(0xb1), x, y)
	VPMAXUD(y, x, x)
	VMOVD(x, bits)
	Store(bits, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// random is Random.At for the indices in y, which it replaces by bits of which
// the upper 24 are the result x 2^24.
func random(y, a, b VecVirtual) {
	t := YMM()
	VPXOR(a, y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
	VPMULLD(constant("first", 0x7feb352d), y, y)
	VPSRLD(Imm(15), y, t)
	VPXOR(t, y, y)
	VPADDD(b, y, y)
	VPMULLD(constant("second", 0x846ca68b), y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
}

// quantizer rounds to levels.
func quantizer() {
	function("quantizeAVX2", "func(codes, values *byte, n int, scale, levels float32, a, b, first uint32)",
		"quantizeAVX2 is Quantize for n numbers, a multiple of 32 and more than none.")
	codes, values, n := Load(Param("codes"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	scale, levels := broadcast32(Load(Param("scale"), XMM())), broadcast32(Load(Param("levels"), XMM()))
	spread := func(name string) VecVirtual {
		x, y := XMM(), YMM()
		VMOVD(Load(Param(name), GP32()), x)
		VPBROADCASTD(x, y)
		return y
	}
	a, b, index := spread("a"), spread("b"), spread("first")
	VPADDD(table("steps", [8]uint32{0, 1, 2, 3, 4, 5, 6, 7}), index, index)
	whole := YMM()
	VCVTTPS2DQ(levels, whole)
	loop(n, 32, func(done GPVirtual) {
		packed := [2]VecVirtual{YMM(), YMM()}
		for v := range 4 {
			u := YMM()
			VMOVDQA(index, u)
			VPADDD(constant("eight", 8), index, index)
			random(u, a, b)
			VPSRLD(Imm(8), u, u)
			VCVTDQ2PS(u, u)
			VMULPS(constant("unit", 0x33800000), u, u) // 2^-24

			x, level, up := YMM(), YMM(), YMM()
			VMOVUPS(Mem{Base: values, Index: done, Scale: 4, Disp: v * 32}, x)
			VANDPS(constant("magnitude", 0x7fffffff), x, level)
			VMULPS(scale, level, level)
			VMINPS(levels, level, level)
			VROUNDPS(Imm(9), level, up) // down, without exceptions
			VSUBPS(up, level, level)    // what rounding down leaves
			VCMPPS(Imm(greater), u, level, level)
			VCVTTPS2DQ(up, up)
			VPSUBD(level, up, up) // minus minus one
			VPSIGND(x, up, up)
			VPADDD(whole, up, up)
			if v%2 == 0 {
				VMOVDQA(up, packed[v/2])
			} else {
				VPACKSSDW(up, packed[v/2], packed[v/2])
			}
		}
		VPACKUSWB(packed[1], packed[0], packed[0])
		order := inRegister(interleave())
		VPERMD(packed[0], order, packed[0])
		VMOVDQU(packed[0], Mem{Base: codes, Index: done, Scale: 1})
	})
}

// dequantizer is the way back.
func dequantizer() {
	function("dequantizeAVX2", "func(values, codes *byte, n int, unit float32, levels uint32)",
		"dequantizeAVX2 is Dequantize for n numbers, a multiple of 32 and more than none.")
	values, codes, n := Load(Param("values"), GP64()), Load(Param("codes"), GP64()), Load(Param("n"), GP64())
	unit := broadcast32(Load(Param("unit"), XMM()))
	x, levels := XMM(), YMM()
	VMOVD(Load(Param("levels"), GP32()), x)
	VPBROADCASTD(x, levels)
	loop(n, 32, func(done GPVirtual) {
		for v := range 4 {
			y := YMM()
			VPMOVZXBD(Mem{Base: codes, Index: done, Scale: 1, Disp: v * 8}, y)
			VPSUBD(levels, y, y)
			VCVTDQ2PS(y, y)
			VMULPS(unit, y, y)
			VMOVUPS(y, Mem{Base: values, Index: done, Scale: 4, Disp: v * 32})
		}
	})
}
