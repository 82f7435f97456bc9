package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// fours emits the functions that join the codes of two or four numbers each, and those that
// load the numbers from which codes are made.
func fours() {
	riceFours()
	riceTwos()
	halvings()
	fixedFours()
	rotator("rotate16AVX2", "float16 or bfloat16", 2, 15, func(m Mem, y VecVirtual) { VPMOVZXWQ(m, y) })
	rotator("rotate32AVX2", "float32", 4, 31, func(m Mem, y VecVirtual) { VPMOVZXDQ(m, y) })
}

// shift is a parameter by which vectors are shifted, in the low lane of a register as the
// shift instructions take it.
func shift(name string) VecVirtual {
	x := XMM()
	VMOVQ(Load(Param(name), GP64()), x)
	return x
}

// spread64 is v in all lanes.
func spread64(v Register) VecVirtual {
	x, y := XMM(), YMM()
	VMOVQ(v, x)
	VPBROADCASTQ(x, y)
	return y
}

// lowest masks the lowest count bits of all lanes.
func lowest(count VecVirtual) VecVirtual {
	y, ones := YMM(), YMM()
	VPCMPEQD(ones, ones, ones)
	VPSLLQ(count, ones, y)
	VPXOR(ones, y, y)
	return y
}

// fold joins neighbours among the lanes of four vectors, then neighbouring pairs: the
// results for numbers 0 to 15 are four lanes, in order. join emits how two vectors are
// joined, whose lanes are the even and the odd ones. It is used for widths, which are
// added, and for codes, of which the odd ones are shifted by the width of the even ones.
func fold(v [4]VecVirtual, join func(even, odd VecVirtual) VecVirtual) VecVirtual {
	// The unpack instructions work within halves of a register, so pairs come out in
	// the order 0, 2, 1, 3; permuting the halves of two such results puts them in
	// order.
	var pairs [2]VecVirtual // of 0, 2, 1 and 3, and of 4, 6, 5 and 7
	for i := range pairs {
		even, odd := YMM(), YMM()
		VPUNPCKLQDQ(v[2*i+1], v[2*i], even)
		VPUNPCKHQDQ(v[2*i+1], v[2*i], odd)
		pairs[i] = join(even, odd)
	}
	even, odd := YMM(), YMM()
	VPERM2I128(Imm(0x20), pairs[1], pairs[0], even)
	VPERM2I128(Imm(0x31), pairs[1], pairs[0], odd)
	return join(even, odd)
}

// riceFours emits RiceFours. A variable shift by 64 or more gives 0 in AVX2, and in Go, so
// that codes that are too long lose the same bits in both.
func riceFours() {
	function("riceFoursAVX2", "func(codes, widths, values *uint64, n int, low uint64)",
		"riceFoursAVX2 is RiceFours for n numbers, a multiple of 16 and more than none.")
	codes, widths, values, n := Load(Param("codes"), GP64()), Load(Param("widths"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	low := shift("low")
	// mask cuts the low bits, one is the end of the zeros, least the width of a code
	// without zeros.
	mask, one, least := lowest(low), YMM(), YMM()
	VPCMPEQD(one, one, one)
	VPSRLQ(Imm(63), one, one)
	VPBROADCASTQ(low, least)
	// The shortest code: the one and the low bits.
	VPADDQ(one, least, least)
	loop(n, 16, func(done GPVirtual) {
		var code, width [4]VecVirtual
		for v := range code {
			y, zeros := YMM(), YMM()
			VMOVDQU(Mem{Base: values, Index: done, Scale: 8, Disp: 32 * v}, y)
			VPSRLQ(low, y, zeros)
			VPAND(mask, y, y)
			VPADDQ(y, y, y)
			VPOR(one, y, y)
			VPSLLVQ(zeros, y, y)
			VPADDQ(least, zeros, zeros)
			code[v], width[v] = y, zeros
		}
		// The widths are folded first: fold meets the pairs in the same order for the
		// codes, which are shifted by them.
		var evens []VecVirtual // widths: by how much their neighbours are shifted
		wide := fold(width, func(even, odd VecVirtual) VecVirtual {
			evens = append(evens, even)
			sum := YMM()
			VPADDQ(even, odd, sum)
			return sum
		})
		joined := fold(code, func(even, odd VecVirtual) VecVirtual {
			VPSLLVQ(evens[0], odd, odd)
			evens = evens[1:]
			VPOR(even, odd, odd)
			return odd
		})
		VMOVDQU(joined, Mem{Base: codes, Index: done, Scale: 2})
		VMOVDQU(wide, Mem{Base: widths, Index: done, Scale: 2})
	})
	end()
}

// riceTwos emits RiceTwos. The difference of the exponent is negated without a branch: x ^
// down - down is x for 0 and -x for all ones.
func riceTwos() {
	function("riceTwosAVX2", "func(codes, widths, values *uint64, n int, base, down, rest, low uint64)",
		"riceTwosAVX2 is RiceTwos for n numbers, a multiple of 8 and more than none.")
	codes, widths, values, n := Load(Param("codes"), GP64()), Load(Param("widths"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	base, down := spread64(Load(Param("base"), GP64())), spread64(Load(Param("down"), GP64()))
	rest, low := shift("rest"), shift("low")
	// others cuts the bits below the exponent, mask the low bits of its difference.
	others, mask, one, least := lowest(rest), lowest(low), YMM(), YMM()
	VPCMPEQD(one, one, one)
	VPSRLQ(Imm(63), one, one)
	fixed := XMM()
	VPADDQ(rest, low, fixed)
	VPBROADCASTQ(fixed, least)
	VPADDQ(one, least, least)
	loop(n, 8, func(done GPVirtual) {
		var code, width [2]VecVirtual
		for v := range code {
			y, e, zeros := YMM(), YMM(), YMM()
			VMOVDQU(Mem{Base: values, Index: done, Scale: 8, Disp: 32 * v}, y)
			VPSRLQ(rest, y, e)
			// The signed difference, negated if down is all ones.
			VPSUBQ(base, e, e)
			VPXOR(down, e, e)
			VPSUBQ(down, e, e)
			VPSRLQ(low, e, zeros)
			VPAND(others, y, y)
			VPSLLQ(low, y, y)
			VPAND(mask, e, e)
			VPOR(e, y, y)
			VPADDQ(y, y, y)
			VPOR(one, y, y)
			VPSLLVQ(zeros, y, y)
			VPADDQ(least, zeros, zeros)
			code[v], width[v] = y, zeros
		}
		even, odd := YMM(), YMM()
		VPUNPCKLQDQ(width[1], width[0], even)
		VPUNPCKHQDQ(width[1], width[0], odd)
		VPADDQ(even, odd, odd)
		VPERMQ(Imm(0xd8), odd, odd) // pairs were in the order 0, 2, 1, 3
		VMOVDQU(odd, Mem{Base: widths, Index: done, Scale: 4})
		first, second := YMM(), YMM()
		VPUNPCKLQDQ(code[1], code[0], first)
		VPUNPCKHQDQ(code[1], code[0], second)
		VPSLLVQ(even, second, second)
		VPOR(first, second, second)
		VPERMQ(Imm(0xd8), second, second)
		VMOVDQU(second, Mem{Base: codes, Index: done, Scale: 4})
	})
	end()
}

// halvings emits Halvings. It keeps six sums of four lanes each in registers, and adds
// their lanes at the end.
func halvings() {
	function("halvingsAVX2", "func(values *uint64, n int, least, most, rest uint64, up, down *[3]uint64)",
		"halvingsAVX2 is Halvings for n numbers, a multiple of 4 and more than none.")
	values, n := Load(Param("values"), GP64()), Load(Param("n"), GP64())
	least, most := spread64(Load(Param("least"), GP64())), spread64(Load(Param("most"), GP64()))
	rest := shift("rest")
	var sums [2][3]VecVirtual
	for way := range sums {
		for r := range sums[way] {
			sums[way][r] = YMM()
			VPXOR(sums[way][r], sums[way][r], sums[way][r])
		}
	}
	loop(n, 4, func(done GPVirtual) {
		// Each difference is added whole, then shifted right once and once more for
		// the other two sums.
		e, above, below := YMM(), YMM(), YMM()
		VMOVDQU(Mem{Base: values, Index: done, Scale: 8}, e)
		VPSRLQ(rest, e, e)
		VPSUBQ(least, e, above)
		VPSUBQ(e, most, below)
		for way, d := range []VecVirtual{above, below} {
			for r := range sums[way] {
				VPADDQ(d, sums[way][r], sums[way][r])
				if r < 2 {
					VPSRLQ(Imm(1), d, d)
				}
			}
		}
	})
	for way, name := range []string{"up", "down"} {
		at := Load(Param(name), GP64())
		for r, s := range sums[way] {
			x, y := XMM(), XMM()
			VEXTRACTI128(Imm(1), s, x)
			VPADDQ(s.AsX(), x, x)
			VPSHUFD(Imm(0x4e), x, y)
			VPADDQ(x, y, y)
			VMOVQ(y, Mem{Base: at, Disp: 8 * r})
		}
	}
	end()
}

// fixedFours emits FixedFours. All codes have the same width, so neighbours are shifted by
// one number and pairs by twice that.
func fixedFours() {
	function("fixedFoursAVX2", "func(codes, values *uint64, n int, base, rest, param uint64)",
		"fixedFoursAVX2 is FixedFours for n numbers, a multiple of 16 and more than none.")
	codes, values, n := Load(Param("codes"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	base := spread64(Load(Param("base"), GP64()))
	rest, param := shift("rest"), shift("param")
	mask, width, twice := lowest(rest), XMM(), XMM()
	VPADDQ(rest, param, width)
	VPADDQ(width, width, twice)
	loop(n, 16, func(done GPVirtual) {
		var code [4]VecVirtual
		for v := range code {
			y, upper := YMM(), YMM()
			VMOVDQU(Mem{Base: values, Index: done, Scale: 8, Disp: 32 * v}, y)
			// Subtracting base leaves the exponent's difference above the rest, which
			// is cut off by the shift.
			VPSUBQ(base, y, upper)
			VPSRLQ(rest, upper, upper)
			VPAND(mask, y, y)
			VPSLLQ(param, y, y)
			VPOR(upper, y, y)
			code[v] = y
		}
		// fold joins twice for pairs, then once for fours.
		by := []VecVirtual{width, width, twice}
		joined := fold(code, func(even, odd VecVirtual) VecVirtual {
			VPSLLQ(by[0], odd, odd)
			by = by[1:]
			VPOR(even, odd, odd)
			return odd
		})
		VMOVDQU(joined, Mem{Base: codes, Index: done, Scale: 2})
	})
	end()
}

// rotator emits the loader for numbers of size bytes, of which bit sign is the sign. load
// widens four of them to lanes of 64 bits.
func rotator(name, kind string, size int, sign uint64, load func(Mem, VecVirtual)) {
	function(name, "func(dst *uint64, src *byte, n int) (least, most uint64)",
		name+" loads n "+kind+" numbers, a multiple of 4 and more than none, as Rotate does.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	least, most, all := YMM(), YMM(), YMM()
	VPCMPEQD(least, least, least)
	VPXOR(most, most, most)
	VPSRLQ(Imm(63-sign), least, all)
	loop(n, 4, func(done GPVirtual) {
		// A rotation within the number's size: the sign goes to bit 0, everything
		// else up by one.
		y, top := YMM(), YMM()
		load(Mem{Base: src, Index: done, Scale: uint8(size)}, y)
		VPSRLQ(Imm(sign), y, top)
		VPADDQ(y, y, y)
		VPAND(all, y, y)
		VPOR(top, y, y)
		VPMINUD(y, least, least) // the upper halves are zeros, or left out
		VPMAXUD(y, most, most)
		VMOVDQU(y, Mem{Base: dst, Index: done, Scale: 8})
	})
	// The extremes are folded to one lane: the halves of the register, then its two lanes.
	// Only the lower 32 bits of a lane count, which hold the whole number.
	for i, extreme := range []VecVirtual{least, most} {
		x, y, result := XMM(), XMM(), GP32()
		choose := VPMINUD
		if i == 1 {
			choose = VPMAXUD
		}
		VEXTRACTI128(Imm(1), extreme, x)
		choose(extreme.AsX(), x, x)
		VPSHUFD(Imm(0x4e), x, y)
		choose(y, x, x)
		VMOVD(x, result)
		Store(result.As64(), ReturnIndex(i))
	}
	end()
}
