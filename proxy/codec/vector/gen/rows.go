package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// rows emits the functions by which the largest values of a row are found. All take a multiple of 8 numbers, more than none, at any
// alignment. Rows are short, so these functions do eight numbers at a time where
// those of residuals do 32.
//
// Magnitudes are compared as integers: without the sign, the bits of floats are in
// the order of the floats, with infinity and then NaNs above all finite numbers, so
// that the largest bits also show whether a row is finite.
func rows() {
	scale32()
	countFrom32()
	maskFrom32()
}

// loops emits body for four vectors of eight numbers at a time, and once more for one
// vector at a time, which does those that are left. lane numbers the vectors of a group, so
// that each can have an accumulator of its own: one would have each addition wait for the
// one before.
func loops(n Register, body func(done GPVirtual, lane int)) {
	done, fours := GP64(), GP64()
	XORQ(done, done)
	MOVQ(n, fours)
	ANDQ(I32(-32), fours)
	Label("fours")
	CMPQ(done, fours)
	JAE(LabelRef("ones"))
	for lane := range 4 {
		body(done, lane)
	}
	ADDQ(Imm(32), done)
	JMP(LabelRef("fours"))
	Label("ones")
	CMPQ(done, n)
	JAE(LabelRef("over"))
	body(done, 0)
	ADDQ(Imm(8), done)
	JMP(LabelRef("ones"))
	Label("over")
}

// zeros are four vectors of zeros.
func zeros() (all [4]VecVirtual) {
	for i := range all {
		all[i] = YMM()
		VPXOR(all[i], all[i], all[i])
	}
	return all
}

// gathered reduces four vectors to one, and its eight lanes to the first. The
// shuffles swap the halves of a register (0x4e) and then neighbours (0xb1). The order
// of additions is not that of the portable code: the sum serves for guesses only, see
// vector.Scale32.
func gathered(all [4]VecVirtual, join func(x, y VecVirtual)) VecVirtual {
	join(all[1], all[0])
	join(all[3], all[2])
	join(all[2], all[0])
	half := XMM()
	VEXTRACTI128(Imm(1), all[0], half)
	first := XMM()
	VMOVDQU(all[0].AsX(), first)
	join(half, first)
	for _, order := range []uint64{0x4e, 0xb1} {
		VPSHUFD(Imm(order), first, half)
		join(half, first)
	}
	return first
}

// scale32 emits Scale32: the sum of magnitudes and the largest, in one pass. The
// largest is an unsigned maximum of bits.
func scale32() {
	function("scale32AVX2", "func(values *byte, n int) (sum float32, most uint32)",
		"scale32AVX2 is Scale32.")
	values, n := Load(Param("values"), GP64()), Load(Param("n"), GP64())
	clear := magnitude32()
	sums, most := zeros(), zeros()
	loops(n, func(done GPVirtual, lane int) {
		y := YMM()
		VPAND(Mem{Base: values, Index: done, Scale: 4, Disp: lane * 32}, clear, y)
		VADDPS(y, sums[lane], sums[lane])
		VPMAXUD(y, most[lane], most[lane])
	})
	Store(gathered(sums, func(x, y VecVirtual) { VADDPS(x, y, y) }), ReturnIndex(0))
	top, bits := gathered(most, func(x, y VecVirtual) { VPMAXUD(x, y, y) }), GP32()
	VMOVD(top, bits)
	Store(bits, ReturnIndex(1))
	end()
}

// countFrom32 emits the count of magnitudes above a bound. AVX2 compares signed
// integers only, which is the same here, as neither side has its top bit set. The
// comparison gives -1 for each, so that it is subtracted.
func countFrom32() {
	function("countAbove32AVX2", "func(values *byte, n int, below uint32) int",
		"countAbove32AVX2 returns how many magnitudes are above below, which is less than 2^31.")
	values, n := Load(Param("values"), GP64()), Load(Param("n"), GP64())
	below, clear, counts := broadcast32("below"), magnitude32(), zeros()
	loops(n, func(done GPVirtual, lane int) {
		y := YMM()
		VPAND(Mem{Base: values, Index: done, Scale: 4, Disp: lane * 32}, clear, y)
		VPCMPGTD(below, y, y)
		VPSUBD(y, counts[lane], counts[lane])
	})
	count := GP32()
	VMOVD(gathered(counts, func(x, y VecVirtual) { VPADDD(x, y, y) }), count)
	Store(count.As64(), ReturnIndex(0))
	end()
}

// maskFrom32 emits the mask of magnitudes above a bound, a byte for each vector.
func maskFrom32() {
	function("maskAbove32AVX2", "func(mask, values *byte, n int, below uint32)",
		"maskAbove32AVX2 writes a bit for each number: whether its magnitude is above below, which is less than 2^31.")
	mask, values, n := Load(Param("mask"), GP64()), Load(Param("values"), GP64()), Load(Param("n"), GP64())
	below, clear := broadcast32("below"), magnitude32()
	loops(n, func(done GPVirtual, lane int) {
		y, bits, at := YMM(), GP32(), GP64()
		VPAND(Mem{Base: values, Index: done, Scale: 4, Disp: lane * 32}, clear, y)
		VPCMPGTD(below, y, y)
		VMOVMSKPS(y, bits)
		// A bit for each number: a vector of eight is a byte of the mask.
		MOVQ(done, at)
		SHRQ(Imm(3), at)
		MOVB(bits.As8(), Mem{Base: mask, Index: at, Scale: 1, Disp: lane})
	})
	end()
}
