// Command gen writes the AVX2 assembly of package matrix, with avo. It is run
// by go generate in that package. Both functions take four rows of a matrix at
// a time, so that the fifth operand is read once for all, and whole groups of
// 16 columns; the callers do the rest in Go.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const lanes = 4

func main() {
	ConstraintExpr("amd64")
	dots()
	combine()
	Generate()
}

// matrix loads the parameters that both functions have: where four rows begin,
// and how many columns are to be done.
func matrix() (rows [lanes]Register, n Register) {
	first, stride := Load(Param("x"), GP64()), Load(Param("stride"), GP64())
	rows[0] = first
	for k := 1; k < lanes; k++ {
		next := GP64()
		LEAQ(Mem{Base: rows[k-1], Index: stride, Scale: 1}, next)
		rows[k] = next
	}
	return rows, Load(Param("n"), GP64())
}

// loop calls body for every 16 columns with the number of those done; there
// are at least 16.
func loop(n Register, body func(at func(row Register, half int) Mem)) {
	done := GP64()
	XORQ(done, done)
	Label("next")
	body(func(row Register, half int) Mem { return Mem{Base: row, Index: done, Scale: 4, Disp: 32 * half} })
	ADDQ(Imm(16), done)
	CMPQ(done, n)
	JB(LabelRef("next"))
}

func dots() {
	TEXT("dotsAVX2", NOSPLIT, "func(sums *[4]float32, w, x *float32, stride, n int)")
	Doc("dotsAVX2 sets sums to the inner products of w's first n numbers, a multiple of",
		"16 and more than none, with those of four rows, stride bytes apart.")
	Pragma("noescape")
	sums, w := Load(Param("sums"), GP64()), Load(Param("w"), GP64())
	rows, n := matrix()
	var total [lanes][2]VecVirtual
	for k := range total {
		for half := range total[k] {
			total[k][half] = YMM()
			VXORPS(total[k][half], total[k][half], total[k][half])
		}
	}
	loop(n, func(at func(Register, int) Mem) {
		for half := range 2 {
			v := YMM()
			VMOVUPS(at(w, half), v)
			for k, row := range rows {
				VFMADD231PS(at(row, half), v, total[k][half])
			}
		}
	})
	for k := range total {
		VADDPS(total[k][1], total[k][0], total[k][0])
	}
	// Two rounds of pairwise sums leave each row's sum of a half of the register.
	VHADDPS(total[1][0], total[0][0], total[0][0])
	VHADDPS(total[3][0], total[2][0], total[2][0])
	VHADDPS(total[2][0], total[0][0], total[0][0])
	upper := XMM()
	VEXTRACTF128(Imm(1), total[0][0], upper)
	VADDPS(total[0][0].AsX(), upper, upper)
	VMOVUPS(upper, Mem{Base: sums})
	VZEROUPPER()
	RET()
}

func combine() {
	TEXT("combineAVX2", NOSPLIT, "func(y *float32, factors *[4]float32, x *float32, stride, n int)")
	Doc("combineAVX2 adds to y's first n numbers, a multiple of 16 and more than none,",
		"those of four rows, stride bytes apart, each times its factor.")
	Pragma("noescape")
	y, factors := Load(Param("y"), GP64()), Load(Param("factors"), GP64())
	rows, n := matrix()
	var factor [lanes]VecVirtual
	for k := range factor {
		factor[k] = YMM()
		VBROADCASTSS(Mem{Base: factors, Disp: 4 * k}, factor[k])
	}
	loop(n, func(at func(Register, int) Mem) {
		for half := range 2 {
			sum := YMM()
			VMOVUPS(at(y, half), sum)
			for k, row := range rows {
				VFMADD231PS(at(row, half), factor[k], sum)
			}
			VMOVUPS(sum, at(y, half))
		}
	})
	VZEROUPPER()
	RET()
}
