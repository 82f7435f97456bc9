// Command gen writes the AVX2 assembly of package vector, with avo. It is run by go
// generate in that package.
//
// All functions take whole groups of numbers and have no tails; their callers, the Go
// functions of package vector, do the rest in portable code. Each function must give the
// same bits as its portable form: sums are not reordered except where the caller says that
// the order does not matter, there are no fused multiply-adds, and NaNs and infinities take
// the same way as there. A file has the functions of one subject, as in package vector.
//
// Conventions: done counts the numbers that are done, n is how many there are, and vectors
// of a group are numbered by v. Comments beside shuffles say in which order the lanes are.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Predicates of VCMPPS and VCMPPD. They are those that the portable code's comparisons mean
// for NaNs.
const (
	notLess = 0x15 // NLT_UQ: true for NaNs
	greater = 0x1e // GT_OQ
)

// The order is that of the functions in the file that is written. Adding one at the
// end keeps the others in place, which makes a diff of the assembly readable.
func main() {
	ConstraintExpr("amd64")
	adders()
	subtractor()
	magnitudes()
	quantizers()
	dequantizers()
	differs()
	rounders()
	sums()
	rows()
	Generate()
}

// function begins a function of a name and signature. Its arguments do not escape, and it
// needs no stack.
func function(name, signature, doc string) {
	TEXT(name, NOSPLIT, signature)
	Doc(doc)
	Pragma("noescape")
}

// loop emits body for each step numbers of n (a multiple of step), with the number of those
// done. It tests at the end: there is at least one step.
func loop(n Register, step uint64, body func(done GPVirtual)) {
	done := GP64()
	XORQ(done, done)
	// Labels are local to a function, so that all loops may have the same.
	name := "next"
	Label(name)
	body(done)
	ADDQ(Imm(step), done)
	CMPQ(done, n)
	JB(LabelRef(name))
}

// end returns from the function. The upper halves of the vector registers are cleared
// before, since instructions of the older, shorter vectors, which Go's compiler emits,
// would wait for them.
func end() {
	VZEROUPPER()
	RET()
}

// broadcast32 is a parameter of 32 bits in all lanes. It comes from memory: loading it to a
// register first is an instruction of the older, shorter vectors, which waits for a hundred
// cycles while the upper halves of others are in use.
func broadcast32(name string) VecVirtual {
	y := YMM()
	VBROADCASTSS(parameter(name), y)
	return y
}

func broadcast64(name string) VecVirtual {
	y := YMM()
	VBROADCASTSD(parameter(name), y)
	return y
}

// parameter is the place of a parameter in memory.
func parameter(name string) Mem {
	at, err := Param(name).Resolve()
	if err != nil {
		panic(err) // a name that the signature lacks
	}
	return at.Addr
}

// magnitude32 masks all bits but the sign, in all lanes; magnitude64 likewise. All ones are
// made by comparing a register with itself and shifted, which needs no memory.
func magnitude32() VecVirtual {
	y := YMM()
	VPCMPEQD(y, y, y)
	VPSRLD(Imm(1), y, y)
	return y
}

func magnitude64() VecVirtual {
	y := YMM()
	VPCMPEQD(y, y, y)
	VPSRLQ(Imm(1), y, y)
	return y
}

// tables are the constants in memory, by name, so that functions share them.
var tables = map[string]Mem{}

// table returns a constant of eight lanes in memory.
func table(name string, lanes [8]uint32) Mem {
	if at, ok := tables[name]; ok {
		return at
	}
	at := GLOBL(name, RODATA|NOPTR)
	for i, lane := range lanes {
		DATA(4*i, U32(lane))
	}
	tables[name] = at
	return at
}

// constant returns a table with one value in all lanes.
func constant(name string, v uint32) Mem {
	return table(name, [8]uint32{v, v, v, v, v, v, v, v})
}

// inRegister loads a table.
func inRegister(m Mem) VecVirtual {
	y := YMM()
	VMOVDQU(m, y)
	return y
}

// interleave is the order in which packing four vectors leaves their halves: the pack
// instructions work within each half of a register. Permuting by it restores the order of
// the numbers.
func interleave() Mem {
	return table("interleave", [8]uint32{0, 4, 1, 5, 2, 6, 3, 7})
}

// bits32 returns the 32 bits of four vectors whose lanes are all ones or all zeros, in a
// general register, in the order of the numbers. Packing to bytes with saturation keeps
// ones ones and zeros zeros.
func bits32(lanes [4]VecVirtual, order VecVirtual) GPVirtual {
	// 32 lanes of 32 bits become 32 bytes, whose top bits are moved to the general
	// register at once.
	VPACKSSDW(lanes[1], lanes[0], lanes[0])
	VPACKSSDW(lanes[3], lanes[2], lanes[2])
	VPACKSSWB(lanes[2], lanes[0], lanes[0])
	VPERMD(lanes[0], order, lanes[0])
	bits := GP32()
	VPMOVMSKB(lanes[0], bits)
	return bits
}

// mask32 stores the bits of 32 numbers, which give returns vector by vector, at their place
// in the mask, and returns them.
func mask32(mask, done Register, order VecVirtual, give func(vector int) VecVirtual) GPVirtual {
	var lanes [4]VecVirtual
	for v := range lanes {
		lanes[v] = give(v)
	}
	bits, at := bits32(lanes, order), GP64()
	MOVQ(done, at)
	SHRQ(Imm(3), at)
	MOVL(bits, Mem{Base: mask, Index: at, Scale: 1})
	return bits
}

// mask64 is mask32 for vectors of four numbers, of which it takes eight.
func mask64(mask, done Register, give func(vector int) VecVirtual) GPVirtual {
	all, at := GP32(), GP64()
	for v := range 8 {
		lanes, bits := give(v), GP32()
		// Four bits of a vector; shifted to their place in the word.
		VMOVMSKPD(lanes, bits)
		if v == 0 {
			MOVL(bits, all)
			continue
		}
		SHLL(Imm(uint64(4*v)), bits)
		ORL(bits, all)
	}
	MOVQ(done, at)
	SHRQ(Imm(3), at)
	MOVL(all, Mem{Base: mask, Index: at, Scale: 1})
	return all
}

// ahead is how many bytes in advance numbers are fetched: further than the processor does
// it by itself, which stops at the end of a page.
const ahead = 1024

// fetch emits prefetches for 32 numbers of size bytes, ahead of those at base.
func fetch(base, done Register, size int) {
	for line := 0; line < 32*size; line += 64 {
		PREFETCHT0(Mem{Base: base, Index: done, Scale: uint8(size), Disp: ahead + line})
	}
}
