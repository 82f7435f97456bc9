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
	loop(n, 32, func(done GPVirtual) {
		fetch(values, done, 4)
		for v := range most {
			y := YMM()
			VPAND(Mem{Base: values, Index: done, Scale: 4, Disp: v * 32}, clear, y)
			VPMAXUD(y, most[v], most[v])
		}
	})
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
	end()
}

// random is Random.At for the indices in y, which it replaces by bits of which
// the upper 23 are the result.
func random(y, a, b VecVirtual) {
	t := YMM()
	VPXOR(a, y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
	VPMULLD(constant("firstFactor", 0x7feb352d), y, y)
	VPSRLD(Imm(15), y, t)
	VPXOR(t, y, y)
	VPADDD(b, y, y)
	VPMULLD(constant("secondFactor", 0x846ca68b), y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
}

// spread32 is a parameter in all lanes.
func spread32(name string) VecVirtual {
	x, y := XMM(), YMM()
	VMOVD(Load(Param(name), GP32()), x)
	VPBROADCASTD(x, y)
	return y
}

// quantizers round to codes, of fewer than 8 bits and of 8.
func quantizers() {
	quantizer("quantizeAVX2", "dst, values *byte, n int, scale float32, base, a, b, first, most uint32, bits int, pack *byte",
		"quantizeAVX2 is Quantize for n numbers, a multiple of 32 and more than none, to codes of less than 8 bits. It overwrites up to 8 bytes behind the last code.")
	quantizer("quantize8AVX2", "dst, values *byte, n int, scale float32, base, a, b, first, most uint32",
		"quantize8AVX2 is Quantize for n numbers, a multiple of 32 and more than none, to codes of 8 bits.")
}

func quantizer(name, parameters, doc string) {
	function(name, "func("+parameters+")", doc)
	dst, values, n := Load(Param("dst"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	scale, base := broadcast32(Load(Param("scale"), XMM())), spread32("base")
	a, b, index := spread32("a"), spread32("b"), spread32("first")
	VPADDD(table("steps", [8]uint32{0, 1, 2, 3, 4, 5, 6, 7}), index, index)
	most := spread32("most")
	store := func(codes VecVirtual, done GPVirtual) {
		VMOVDQU(codes, Mem{Base: dst, Index: done, Scale: 1})
	}
	if name != "quantize8AVX2" {
		store = packer(dst)
	}
	loop(n, 32, func(done GPVirtual) {
		packed := [2]VecVirtual{YMM(), YMM()}
		for v := range 4 {
			u := YMM()
			VMOVDQA(index, u)
			VPADDD(constant("eight", 8), index, index)
			random(u, a, b)
			VPSRLD(Imm(9), u, u)
			VPADDD(base, u, u)
			x := YMM()
			VMULPS(Mem{Base: values, Index: done, Scale: 4, Disp: v * 32}, scale, x)
			VCVTPS2DQ(x, x)
			VPADDD(u, x, x)
			VPSRAD(Imm(23), x, x)
			if v%2 == 0 {
				VMOVDQA(x, packed[v/2])
			} else {
				VPACKSSDW(x, packed[v/2], packed[v/2])
			}
		}
		VPACKUSWB(packed[1], packed[0], packed[0])
		VPERMD(packed[0], inRegister(interleave()), packed[0])
		VPMINUB(most, packed[0], packed[0])
		store(packed[0], done)
	})
	end()
}

// packer returns what moves the bits of 32 codes together and stores them: two
// neighbours at a time, then pairs, then fours.
func packer(dst Register) func(codes VecVirtual, done GPVirtual) {
	bits, pack := Load(Param("bits"), GP64()), Load(Param("pack"), GP64())
	pairs, fours, eights := YMM(), YMM(), YMM()
	VMOVDQU(Mem{Base: pack}, pairs)
	VMOVDQU(Mem{Base: pack, Disp: 32}, fours)
	VMOVDQU(Mem{Base: pack, Disp: 64}, eights)
	down := XMM()
	VMOVQ(Mem{Base: pack, Disp: 64}, down) // 32 less the bits of four codes
	return func(codes VecVirtual, _ GPVirtual) {
		VPMADDUBSW(codes, pairs, codes)
		VPMADDWD(fours, codes, codes)
		VPSLLVD(eights, codes, codes)
		VPSRLQ(down, codes, codes)
		upper := XMM()
		VEXTRACTI128(Imm(1), codes, upper)
		for _, half := range []VecVirtual{codes.AsX().(VecVirtual), upper} {
			VMOVQ(half, Mem{Base: dst})
			VPEXTRQ(Imm(1), half, Mem{Base: dst, Index: bits, Scale: 1})
			LEAQ(Mem{Base: dst, Index: bits, Scale: 2}, dst.(GPVirtual))
		}
	}
}

// dequantizer is the way back, from codes of any width.
func dequantizer() {
	function("dequantizeAVX2", "func(values, codes *byte, n int, unit, offset float32, bits int, unpack *byte)",
		"dequantizeAVX2 is Dequantize for n numbers, a multiple of 8 and more than none. It reads 8 bytes at each 8 codes, however many these take.")
	values, codes, n := Load(Param("values"), GP64()), Load(Param("codes"), GP64()), Load(Param("n"), GP64())
	unit, offset := broadcast32(Load(Param("unit"), XMM())), broadcast32(Load(Param("offset"), XMM()))
	bits, unpack := Load(Param("bits"), GP64()), Load(Param("unpack"), GP64())
	bytes, shifts, clear := YMM(), YMM(), YMM()
	VMOVDQU(Mem{Base: unpack}, bytes)
	VMOVDQU(Mem{Base: unpack, Disp: 32}, shifts)
	VMOVDQU(Mem{Base: unpack, Disp: 64}, clear)
	loop(n, 8, func(done GPVirtual) {
		y := YMM()
		VPBROADCASTQ(Mem{Base: codes}, y)
		VPSHUFB(bytes, y, y)
		VPSRLVD(shifts, y, y)
		VPAND(clear, y, y)
		VCVTDQ2PS(y, y)
		VSUBPS(offset, y, y)
		VMULPS(unit, y, y)
		VMOVUPS(y, Mem{Base: values, Index: done, Scale: 4})
		ADDQ(bits, codes)
	})
	end()
}
