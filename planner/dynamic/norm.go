package dynamic

import "math"

// A norm is the objective of [Locality] and its slope at the present loads. A move changes the
// powers of two machines. The sums over all machines are kept as trees of pairs, so that a move
// changes as many sums as the logarithm of the machines, and so that the result does not depend on
// the moves that came before.
type norm struct {
	// The objective.
	value float64
	// The 8-norm alone.
	root float64
	// Sums over machines of the 8th powers, and of the loads.
	sum, total sums
	// The slope of root per 7th power of a load.
	unit   float64
	spread float64 // spread / machines
	// By machine, its bytes per step, those for other jobs included, divided by the relative speed
	// of its link.
	load []float64
	// The 7th and 8th powers of load.
	seventh, eight []float64
	// The machine with the lowest price among those that may own items.
	cheapest int32
	// All links are equally fast.
	alike bool
}

// sums are those of a list: sums[1] is the sum of all, sums[i] that of sums[2i] and sums[2i+1]. The
// list is the second half.
type sums []float64

// newSums returns the sums of n zeros.
func newSums(n int) sums { return make(sums, 2*n) }

// all is the sum of the list.
func (s sums) all() float64 { return s[1] }

// put sets one of the list.
func (s sums) put(i int, v float64) {
	i += len(s) / 2
	s[i] = v
	for i /= 2; i > 0; i /= 2 {
		s[i] = s[2*i] + s[2*i+1]
	}
}

// set sets the whole list.
func (s sums) set(list []float64) {
	n := copy(s[len(s)/2:], list)
	for i := n - 1; i > 0; i-- {
		s[i] = s[2*i] + s[2*i+1]
	}
}

// reset computes everything from the loads.
func (n *norm) reset(l *Locality) {
	if len(n.load) != l.k {
		n.load, n.seventh, n.eight, n.spread = make([]float64, l.k), make([]float64, l.k), make([]float64, l.k), l.o.Spread/float64(l.k)
		n.sum, n.total = newSums(l.k), newSums(l.k)
	}
	n.alike = true
	for i := range l.loads {
		n.look(l, i)
		n.alike = n.alike && l.speed[i] == l.speed[0]
	}
	n.sum.set(n.eight)
	n.total.set(n.load)
	n.add(l)
	n.findCheapest(l)
}

// change updates the norm after the loads of two machines have changed.
func (n *norm) change(l *Locality, a, b int32) {
	for _, i := range [2]int32{a, b} {
		n.look(l, int(i))
		n.sum.put(int(i), n.eight[i])
		n.total.put(int(i), n.load[i])
	}
	n.add(l)
	if !n.alike || a == n.cheapest || b == n.cheapest {
		n.findCheapest(l)
		return
	}
	for _, i := range [2]int32{a, b} { // the order of the others is as it was
		if p, least := n.seventh[i], n.seventh[n.cheapest]; (l.barred == nil || !l.barred[i]) && (p < least || p == least && i < n.cheapest) {
			n.cheapest = i
		}
	}
}

// look adopts the load of one machine.
func (n *norm) look(l *Locality, i int) {
	v := (max(l.loads[i]*l.scale()+l.extra[i], 0) + l.baseOf(i)) * l.speed[i]
	n.load[i], n.seventh[i], n.eight[i] = v, pow7(v), pow8(v)
}

// add computes what depends on the sums.
func (n *norm) add(l *Locality) {
	sum := n.sum.all()
	n.root = math.Pow(sum, 1./power)
	n.value = n.root + n.spread*n.total.all()
	n.unit = 0
	if sum > 0 {
		n.unit = math.Pow(sum, (1.-power)/power)
	}
}

// findCheapest finds the machine with the lowest price. Where all links are equally fast it compares
// powers, which order machines as prices do, and also those whose prices are rounded to the same.
func (n *norm) findCheapest(l *Locality) {
	n.cheapest = -1
	least := 0.0
	for i, p := range n.seventh {
		if l.barred != nil && l.barred[i] {
			continue
		}
		if !n.alike {
			p = n.price(l, int32(i))
		}
		if n.cheapest < 0 || p < least {
			n.cheapest, least = int32(i), p
		}
	}
	n.cheapest = max(n.cheapest, 0)
}

// price returns the slope of value by the bytes of a machine: what one more byte per step there
// costs.
func (n *norm) price(l *Locality, machine int32) float64 {
	return (n.seventh[machine]*n.unit + n.spread) * l.speed[machine]
}

// after returns what value would be with other bytes at two machines.
func (n *norm) after(l *Locality, from, to int32, atFrom, atTo float64) float64 {
	a, b := max(n.load[from]+atFrom*l.speed[from], 0), max(n.load[to]+atTo*l.speed[to], 0)
	sum := max(n.sum.all()-n.eight[from]-n.eight[to]+pow8(a)+pow8(b), 0)
	return math.Pow(sum, 1./power) + n.spread*(n.total.all()-n.load[from]-n.load[to]+a+b)
}

func pow7(v float64) float64 { w := v * v; return w * w * w * v }
func pow8(v float64) float64 { w := v * v; w *= w; return w * w }
