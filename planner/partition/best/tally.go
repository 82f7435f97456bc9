package best

import "math/bits"

// spread[x] has a 1 in byte i where bit i of x is set.
var spread = func() (table [256]uint64) {
	for x := range table {
		for i := range 8 {
			table[x] |= uint64(x>>i&1) << (8 * i)
		}
	}
	return table
}()

// planes are bit-sliced counters: planes[i] has bit i of the count of every block of a word. Adding
// a net takes the same few instructions whatever the number of blocks.
type planes[T word] [32]T

// others returns the blocks that touch the net apart from one of its vertices, which is in block
// own (given as a bit).
func (c *cell[T]) others(own T) T { return c.touch &^ (c.single & own) }

// add3 is a full adder of three bits in each position.
func add3[T word](a, b, c T) (sum, carry T) {
	u := a ^ b
	return u ^ c, a&b | u&c
}

// add adds x at bit i of the counters and propagates the carry.
func (p *planes[T]) add(i int, x T) {
	for ; x != 0; i++ {
		p[i&31], x = p[i&31]^x, p[i&31]&x
	}
}

// tally sets p to the number of the given nets that each block touches without the vertex whose
// nets they are, which is in block own (a bit, or 0 if own is in another word). Groups of eight
// nets are added by carry-save adders before they reach p.
func tally[T word](p *planes[T], cells []cell[T], nets []uint32, own T) {
	clear(p[:])
	var ones, twos, fours T
	for ; len(nets) >= 8; nets = nets[8:] {
		r := (*[8]uint32)(nets)
		var t0, t1, t2, t3, f0, f1, carry T
		ones, t0 = add3(ones, cells[r[0]].others(own), cells[r[1]].others(own))
		ones, t1 = add3(ones, cells[r[2]].others(own), cells[r[3]].others(own))
		ones, t2 = add3(ones, cells[r[4]].others(own), cells[r[5]].others(own))
		ones, t3 = add3(ones, cells[r[6]].others(own), cells[r[7]].others(own))
		twos, f0 = add3(twos, t0, t1)
		twos, f1 = add3(twos, t2, t3)
		fours, carry = add3(fours, f0, f1)
		p.add(3, carry)
	}
	// What the adders still hold has the weights 1, 2 and 4. add has only been called from bit 3
	// on.
	p[0], p[1], p[2] = ones, twos, fours
	for _, e := range nets {
		p.add(0, cells[e].others(own))
	}
}

// addTo adds the counts, all below 2^n, times weight to out, which has an element for each block.
// spread transposes eight counters at a time from bits to bytes.
func (p *planes[T]) addTo(out []float32, n int, weight float32) {
	for q := 0; q < len(out); q += 8 {
		to := out[q:min(q+8, len(out))]
		scale := weight
		// Eight bits of the counters at a time, in eight lanes of a byte each.
		for i := 0; i < n; i += 8 {
			var lanes uint64
			for j := i; j < min(i+8, n); j++ {
				lanes += spread[byte(p[j&31]>>q)] << (j - i)
			}
			for b := range to {
				to[b] += scale * float32(byte(lanes))
				lanes >>= 8
			}
			scale *= 256
		}
	}
}

// hits sets out[b] to the weight of the nets of vertex v that block b touches without v, and
// returns the weight of all of v's nets. This is the inner loop of annealing.
func (s *state[T]) hits(v int, p *planes[T], out []float32) float32 {
	clear(out)
	row := s.h.row(v)
	own := int(s.block[v])
	var sum float32
	for _, class := range s.h.class {
		if len(row) == 0 {
			break
		}
		n := classRun(row, class.end)
		if n == 0 {
			continue
		}
		for w, cells := range s.cells {
			var bit T
			if own/width[T]() == w {
				bit = 1 << (own % width[T]())
			}
			tally(p, cells, row[:n], bit)
			first := w * width[T]()
			p.addTo(out[first:min(first+width[T](), len(out))], bits.Len(uint(n)), float32(class.weight))
		}
		sum += float32(class.weight) * float32(n)
		row = row[n:]
	}
	return sum
}
