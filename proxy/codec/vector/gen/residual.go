package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// adders emits the functions that add a gradient to a residual and compare the sums
// with the threshold, in one pass over memory. Gradients of 16 bits are widened on
// the way, which costs less than reading more memory would.
//
// They differ only in how a vector of the gradient is loaded: a Go function for each
// kind writes these instructions.
func adders() {
	float32s := func(g Mem) VecVirtual {
		y := YMM()
		VMOVUPS(g, y)
		return y
	}
	float16s := func(g Mem) VecVirtual {
		y := YMM()
		VCVTPH2PS(g, y)
		return y
	}
	bfloat16s := func(g Mem) VecVirtual {
		y := YMM()
		VPMOVZXWD(g, y)
		VPSLLD(Imm(16), y, y)
		return y
	}
	adder32("addFloat32AVX2", "float32", 4, float32s)
	adder32("addFloat16AVX2", "float16", 2, float16s)
	adder32("addBFloat16AVX2", "bfloat16", 2, bfloat16s)

	adder64()
}

// adder32 emits an adder for a residual of float32 numbers; load widens eight numbers of
// the gradient.
func adder32(name, kind string, size int, load func(Mem) VecVirtual) {
	function(name, "func(e *float32, gradient *byte, n int, tau float32, mask *uint64, at *uint32, first uint32) int",
		name+" adds n "+kind+" numbers, a multiple of 32 and more than none, to e and compares.")
	e, g, n := Load(Param("e"), GP64()), Load(Param("gradient"), GP64()), Load(Param("n"), GP64())
	tau, mask := broadcast32("tau"), Load(Param("mask"), GP64())
	found := loadPositions()
	magnitude, order := magnitude32(), inRegister(interleave())
	loop(n, 32, func(done GPVirtual) {
		// Both arrays are read in order and only once for each push: without the prefetch
		// memory would be waited for at each page.
		fetch(e, done, 4)
		fetch(g, done, size)
		bits := mask32(mask, done, order, func(v int) VecVirtual {
			// Eight numbers of the gradient, widened; the residual is added from
			// memory and stored back.
			sum := load(Mem{Base: g, Index: done, Scale: uint8(size), Disp: v * 8 * size})
			at := Mem{Base: e, Index: done, Scale: 4, Disp: v * 32}
			VADDPS(at, sum, sum)
			VMOVUPS(sum, at)
			// Without the sign, compared so that NaNs pass: not less than tau.
			VANDPS(magnitude, sum, sum)
			VCMPPS(Imm(notLess), tau, sum, sum)
			return sum
		})
		found.write(bits, done)
	})
	found.store()
	end()
}

// adder64 emits the adder for residual and gradient of float64 numbers.
func adder64() {
	function("addFloat64AVX2", "func(e *float64, gradient *byte, n int, tau float64, mask *uint64, at *uint32, first uint32) int",
		"addFloat64AVX2 adds n float64 numbers, a multiple of 32 and more than none, to e and compares.")
	e, g, n := Load(Param("e"), GP64()), Load(Param("gradient"), GP64()), Load(Param("n"), GP64())
	tau, mask := broadcast64("tau"), Load(Param("mask"), GP64())
	found := loadPositions()
	magnitude := magnitude64()
	loop(n, 32, func(done GPVirtual) {
		fetch(e, done, 8)
		fetch(g, done, 8)
		bits := mask64(mask, done, func(v int) VecVirtual {
			sum, at := YMM(), Mem{Base: e, Index: done, Scale: 8, Disp: v * 32}
			VMOVUPD(Mem{Base: g, Index: done, Scale: 8, Disp: v * 32}, sum)
			VADDPD(at, sum, sum)
			VMOVUPD(sum, at)
			VANDPD(magnitude, sum, sum)
			VCMPPD(Imm(notLess), tau, sum, sum)
			return sum
		})
		found.write(bits, done)
	})
	found.store()
	end()
}

// subtractor emits the function that subtracts two vectors, stores the differences
// and compares their magnitudes with a threshold. It serves error feedback (package
// ef21), where the difference between the new values and the peer's copy decides what
// is sent.
func subtractor() {
	function("subtractFloat32AVX2", "func(d *float32, x, w *byte, n int, tau float32, mask *uint64, at *uint32, first uint32) int",
		"subtractFloat32AVX2 makes d the differences of n float32 numbers, a multiple of 32 and more than none, and compares.")
	d, x, w, n := Load(Param("d"), GP64()), Load(Param("x"), GP64()), Load(Param("w"), GP64()), Load(Param("n"), GP64())
	tau, mask := broadcast32("tau"), Load(Param("mask"), GP64())
	found := loadPositions()
	magnitude, order := magnitude32(), inRegister(interleave())
	loop(n, 32, func(done GPVirtual) {
		fetch(x, done, 4)
		fetch(w, done, 4)
		bits := mask32(mask, done, order, func(v int) VecVirtual {
			y := YMM()
			VMOVUPS(Mem{Base: x, Index: done, Scale: 4, Disp: v * 32}, y)
			VSUBPS(Mem{Base: w, Index: done, Scale: 4, Disp: v * 32}, y, y)
			VMOVUPS(y, Mem{Base: d, Index: done, Scale: 4, Disp: v * 32})
			VANDPS(magnitude, y, y)
			VCMPPS(Imm(notLess), tau, y, y)
			return y
		})
		found.write(bits, done)
	})
	found.store()
	end()
}
