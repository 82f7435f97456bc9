package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// magnitudes emits the functions that find the largest magnitude, as bits, of numbers of
// each size. Without the sign the bits of floating-point numbers are ordered as integers.
func magnitudes() {
	clear16 := func(y VecVirtual) { VPSRLW(Imm(1), y, y) }
	clear32 := func(y VecVirtual) { VPSRLD(Imm(1), y, y) }
	clear64 := func(y VecVirtual) { VPSRLQ(Imm(1), y, y) }
	magnitude("maxMagnitude16AVX2", "uint16", 2, clear16, func(x, most VecVirtual) { VPMAXUW(x, most, most) })
	magnitude("maxMagnitude32AVX2", "uint32", 4, clear32, func(x, most VecVirtual) { VPMAXUD(x, most, most) })
	magnitude("maxMagnitude64AVX2", "uint64", 8, clear64, func(x, most VecVirtual) {
		above := like(x)
		// AVX2 has no maximum of 64-bit integers, so it is a comparison and a choice.
		VPCMPGTQ(most, x, above) // of numbers that are not negative: their sign bits are clear
		VBLENDVPD(above, x, most, most)
	})
}

// like is a new register as long as x.
func like(x VecVirtual) VecVirtual {
	if x.Size() == 16 {
		return XMM()
	}
	return YMM()
}

// magnitude emits one of these functions. unsign turns all ones into the mask of a
// magnitude; raise emits most = max(most, x) for vectors of magnitudes.
func magnitude(name, result string, size int, unsign func(VecVirtual), raise func(x, most VecVirtual)) {
	function(name, "func(values *byte, n int) "+result,
		fmt.Sprintf("%s returns the largest magnitude of n numbers of %d bytes, a multiple of 32 and more than none, as bits.", name, size))
	values, n := Load(Param("values"), GP64()), Load(Param("n"), GP64())
	clear := YMM()
	VPCMPEQD(clear, clear, clear)
	unsign(clear)
	// As many vectors as 32 numbers fill, each with a maximum of its own, so that
	// they do not wait for each other.
	most := make([]VecVirtual, size) // 32 numbers at a time
	for v := range most {
		most[v] = YMM()
		VPXOR(most[v], most[v], most[v])
	}
	loop(n, 32, func(done GPVirtual) {
		fetch(values, done, size)
		for v := range most {
			y := YMM()
			VPAND(Mem{Base: values, Index: done, Scale: uint8(size), Disp: v * 32}, clear, y)
			raise(y, most[v])
		}
	})
	// The vectors are reduced to one, its halves to one, and so on down to one number.
	for ; len(most) > 1; most = most[:len(most)/2] {
		for v := range len(most) / 2 {
			raise(most[len(most)/2+v], most[v])
		}
	}
	x := XMM()
	VEXTRACTI128(Imm(1), most[0], x)
	all := most[0].AsX().(VecVirtual)
	raise(x, all)
	y := XMM()
	VPSHUFD(Imm(0x4e), all, y)
	raise(y, all)
	if size == 8 {
		bits := GP64()
		VMOVQ(all, bits)
		Store(bits, ReturnIndex(0))
		end()
		return
	}
	VPSHUFD(Imm(0xb1), all, y)
	raise(y, all)
	if size == 2 {
		VPSRLD(Imm(16), all, y)
		raise(y, all)
	}
	bits := GP32()
	VMOVD(all, bits)
	if size == 2 {
		Store(bits.As16(), ReturnIndex(0))
	} else {
		Store(bits, ReturnIndex(0))
	}
	end()
}

// random emits Random.At for the indices in y, which it replaces by bits whose upper 23 are
// the result.
func random(y, a, b VecVirtual) {
	t := YMM()
	VPXOR(a, y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
	// The same operations as in Random.At, eight at a time. Multiplications keep the
	// low 32 bits.
	VPMULLD(constant("firstFactor", 0x7feb352d), y, y)
	VPSRLD(Imm(15), y, t)
	VPXOR(t, y, y)
	VPADDD(b, y, y)
	VPMULLD(constant("secondFactor", 0x846ca68b), y, y)
	VPSRLD(Imm(16), y, t)
	VPXOR(t, y, y)
}

// quantizers emit the functions that round to codes, of fewer than 8 bits and of 8. Bytes
// need no packing, which makes 8 bits a case of its own.
func quantizers() {
	quantizer("quantizeAVX2", "dst, values *byte, n int, scale float32, base, a, b, first, most uint32, bits int, pack *byte",
		"quantizeAVX2 is Quantize for n numbers, a multiple of 32 and more than none, to codes of less than 8 bits. It overwrites up to 8 bytes behind the last code.")
	quantizer("quantize8AVX2", "dst, values *byte, n int, scale float32, base, a, b, first, most uint32",
		"quantize8AVX2 is Quantize for n numbers, a multiple of 32 and more than none, to codes of 8 bits.")
	quantizer("nearestAVX2", "dst, values *byte, n int, scale float32, base, most uint32, bits int, pack *byte",
		"nearestAVX2 is QuantizeNearest for n numbers, a multiple of 32 and more than none, to codes of less than 8 bits; base has the half in it. It overwrites up to 8 bytes behind the last code.")
	quantizer("nearest8AVX2", "dst, values *byte, n int, scale float32, base, most uint32",
		"nearest8AVX2 is QuantizeNearest for n numbers, a multiple of 32 and more than none, to codes of 8 bits; base has the half in it.")
}

// quantizer emits one of them. Numbers are rounded to integers with fraction bits, to the
// nearest, ties to even; a random number or a half is added, and the fraction is shifted
// out. Numbers that are beyond the last code saturate in the packs to bytes and in the
// minimum.
func quantizer(name, parameters, doc string) {
	function(name, "func("+parameters+")", doc)
	dst, values, n := Load(Param("dst"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	scale, base := broadcast32("scale"), broadcast32("base")
	above := func() VecVirtual { return base }
	if strings.HasPrefix(name, "quantize") {
		above = randomly(base)
	}
	most := broadcast32("most")
	store := func(codes VecVirtual, done GPVirtual) {
		VMOVDQU(codes, Mem{Base: dst, Index: done, Scale: 1})
	}
	if !strings.Contains(name, "8") {
		store = packer(dst)
	}
	loop(n, 32, func(done GPVirtual) {
		// Four vectors of eight codes are packed to 16 bits, in pairs, then to bytes,
		// which interleaves their halves.
		packed := [2]VecVirtual{YMM(), YMM()}
		for v := range 4 {
			u, x := above(), YMM()
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

// randomly returns what emits the random numbers of eight places after the other, with the
// base added.
func randomly(base VecVirtual) func() VecVirtual {
	a, b, index := broadcast32("a"), broadcast32("b"), broadcast32("first")
	VPADDD(table("steps", [8]uint32{0, 1, 2, 3, 4, 5, 6, 7}), index, index)
	return func() VecVirtual {
		u := YMM()
		VMOVDQA(index, u)
		VPADDD(constant("eight", 8), index, index)
		random(u, a, b)
		VPSRLD(Imm(9), u, u)
		VPADDD(base, u, u)
		return u
	}
}

// packer returns what moves the bits of 32 codes together and stores them: two neighbours
// at a time, then pairs, then fours. Every eight codes make bits bytes and are stored as 8;
// the next store overwrites the surplus.
func packer(dst Register) func(codes VecVirtual, done GPVirtual) {
	bits, pack := Load(Param("bits"), GP64()), Load(Param("pack"), GP64())
	// The factors of package vector's packing, for the width at hand: one function
	// serves all widths.
	pairs, fours, eights := YMM(), YMM(), YMM()
	VMOVDQU(Mem{Base: pack}, pairs)
	VMOVDQU(Mem{Base: pack, Disp: 32}, fours)
	VMOVDQU(Mem{Base: pack, Disp: 64}, eights)
	down := XMM()
	VMOVQ(Mem{Base: pack, Disp: 64}, down) // 32 less the bits of four codes
	return func(codes VecVirtual, _ GPVirtual) {
		// Neighbouring bytes are multiplied and added to 16 bits, these to 32 bits.
		// The factors, up to 128, are the unsigned operand; codes of fewer than 8
		// bits are small enough to be the signed one.
		VPMADDUBSW(codes, pairs, codes)
		VPMADDWD(fours, codes, codes)
		// Shifts the lower of two fours up until it meets the other, and both down
		// again as 64 bits.
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
