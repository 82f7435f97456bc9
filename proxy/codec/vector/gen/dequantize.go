package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// dequantizers emit a function for each kind of number, which takes codes of any width.
func dequantizers() {
	dequantizer("Float32", func(places, unit VecVirtual, values, done Register) {
		VMULPS(unit, places, places)
		VMOVUPS(places, Mem{Base: values, Index: done, Scale: 4})
	})
	dequantizer("Float64", func(places, unit VecVirtual, values, done Register) {
		upper, wide := XMM(), YMM()
		// Widened before they are multiplied, since the unit is a float64.
		VEXTRACTF128(Imm(1), places, upper)
		for v, half := range []Op{places.AsX(), upper} {
			VCVTPS2PD(half, wide)
			VMULPD(unit, wide, wide)
			VMOVUPD(wide, Mem{Base: values, Index: done, Scale: 8, Disp: v * 32})
		}
	})
	dequantizer("Float16", func(places, unit VecVirtual, values, done Register) {
		VMULPS(unit, places, places)
		// VCVTPS2PH makes infinities of what is too large; package element saturates.
		VMINPS(constant("mostFloat16", 0x477fe000), places, places) // 65504: what is finite stays that
		VMAXPS(constant("leastFloat16", 0xc77fe000), places, places)
		VCVTPS2PH(Imm(0), places, Mem{Base: values, Index: done, Scale: 2}) // to the nearest, ties to even
	})
	dequantizer("BFloat16", func(places, unit VecVirtual, values, done Register) {
		VMULPS(unit, places, places)
		nearest16(places, places)
		storeLower16(places, Mem{Base: values, Index: done, Scale: 2})
	})
}

// dequantizer emits the function for a kind. store emits how eight numbers are stored, of
// which places has the distance from zero in levels.
func dequantizer(kind string, store func(places, unit VecVirtual, values, done Register)) {
	name, unitType, broadcast := "dequantize"+kind+"AVX2", "float32", broadcast32
	if kind == "Float64" {
		unitType, broadcast = "float64", broadcast64
	}
	function(name, "func(values, codes *byte, n int, unit "+unitType+", offset float32, bits int, unpack *byte)",
		fmt.Sprintf("%s is Dequantize for n numbers, a multiple of 8 and more than none. It reads 8 bytes at each 8 codes, however many these take.", name))
	// codes advances by bits bytes with every group, so that it is a pointer of its
	// own and not indexed by done.
	values, codes, n := Load(Param("values"), GP64()), Load(Param("codes"), GP64()), Load(Param("n"), GP64())
	unit, offset := broadcast("unit"), broadcast32("offset")
	bits, unpack := Load(Param("bits"), GP64()), Load(Param("unpack"), GP64())
	bytes, shifts, clear := YMM(), YMM(), YMM()
	VMOVDQU(Mem{Base: unpack}, bytes)
	VMOVDQU(Mem{Base: unpack, Disp: 32}, shifts)
	VMOVDQU(Mem{Base: unpack, Disp: 64}, clear)
	loop(n, 8, func(done GPVirtual) {
		// Every lane gets the two bytes that hold its code, then its bits are shifted down
		// and cut off. The 8 codes of a group take exactly bits bytes, so that each group
		// begins at a byte.
		y := YMM()
		VPBROADCASTQ(Mem{Base: codes}, y)
		VPSHUFB(bytes, y, y)
		VPSRLVD(shifts, y, y)
		VPAND(clear, y, y)
		VCVTDQ2PS(y, y)
		// Codes are small integers, exact in float32; so is their distance from the
		// offset, which may be a half.
		VSUBPS(offset, y, y)
		store(y, unit, values, done)
		ADDQ(bits, codes)
	})
	end()
}
