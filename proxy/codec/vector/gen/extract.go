package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// positions are the registers for writing out where the numbers are that pass a comparison.
type positions struct {
	next, first Register // where the next position is written; the position of number 0
	start       Register // where the first was written, to count them in the end
}

// loadPositions loads the parameters at and first.
func loadPositions() positions {
	p := positions{Load(Param("at"), GP64()), Load(Param("first"), GP32()), GP64()}
	MOVQ(p.next, p.start)
	return p
}

// usual is how many positions of 32 numbers are written without looking how many there are:
// what is too much is overwritten by the next. At 99% sparsity one group in 250 has more,
// so that the branch to the loop below is predicted well.
const usual = 2

// write appends the positions of the set bits, which are of the numbers from done on.
func (p positions) write(bits, done GPVirtual) {
	count, position := GP64(), GP32()
	POPCNTL(bits, count.As32())
	MOVL(done.As32(), position)
	ADDL(p.first, position)
	// The lowest set bit is a number that passed; BLSR clears it for the next.
	one := func(at Mem) {
		t := GP32()
		TZCNTL(bits, t)
		ADDL(position, t)
		MOVL(t, at)
		BLSRL(bits, bits)
	}
	for i := range usual {
		one(Mem{Base: p.next, Disp: 4 * i})
	}
	// The flags are those of the last BLSR: zero if no bit is left.
	JZ(LabelRef("written"))
	more := GP64()
	LEAQ(Mem{Base: p.next, Disp: 4 * usual}, more)
	Label("more")
	one(Mem{Base: more})
	LEAQ(Mem{Base: more, Disp: 4}, more) // leaves the flags alone
	JNZ(LabelRef("more"))
	Label("written")
	// Advances by as many as there were, not by as many as were written.
	LEAQ(Mem{Base: p.next, Index: count, Scale: 4}, p.next)
}

// store returns how many positions were written as the function's result.
func (p positions) store() {
	SUBQ(p.start, p.next)
	SHRQ(Imm(2), p.next)
	Store(p.next.(GPVirtual), ReturnIndex(0))
}
