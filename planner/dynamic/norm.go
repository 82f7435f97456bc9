package dynamic

import "math"

// A norm is the objective of [Locality] and its slope at the present loads. A move changes the
// powers of two machines; the sums over all machines are computed again each time, in one order, so
// that the result does not depend on the moves that came before. That costs time in proportion to
// the machines per move.
type norm struct {
	// The objective.
	value float64
	// The 8-norm alone.
	root float64
	// Sums over machines of the 8th powers, and of the loads.
	sum, total float64
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
}

// reset computes everything from the loads.
func (n *norm) reset(l *Locality) {
	if len(n.load) != l.k {
		n.load, n.seventh, n.eight, n.spread = make([]float64, l.k), make([]float64, l.k), make([]float64, l.k), l.o.Spread/float64(l.k)
	}
	for i := range l.loads {
		n.look(l, i)
	}
	n.add(l)
}

// change updates the norm after the loads of two machines have changed.
func (n *norm) change(l *Locality, a, b int32) {
	n.look(l, int(a))
	n.look(l, int(b))
	n.add(l)
}

// look adopts the load of one machine.
func (n *norm) look(l *Locality, i int) {
	v := (max(l.loads[i]*l.scale()+l.extra[i], 0) + l.baseOf(i)) * l.speed[i]
	n.load[i], n.seventh[i], n.eight[i] = v, pow7(v), pow8(v)
}

// add computes what depends on all machines.
func (n *norm) add(l *Locality) {
	n.sum, n.total = 0, 0
	for i, p := range n.eight {
		n.sum += p
		n.total += n.load[i]
	}
	n.root = math.Pow(n.sum, 1./power)
	n.value = n.root + n.spread*n.total
	n.unit = 0
	if n.sum > 0 {
		n.unit = math.Pow(n.sum, (1.-power)/power)
	}
	n.cheapest = 0
	best, barred := n.price(l, 0), l.barred != nil && l.barred[0]
	for i, p := range n.seventh {
		price := (p*n.unit + n.spread) * l.speed[i]
		if (barred || price < best) && (l.barred == nil || !l.barred[i]) {
			n.cheapest, best, barred = int32(i), price, false
		}
	}
}

// price returns the slope of value by the bytes of a machine: what one more byte per step there
// costs.
func (n *norm) price(l *Locality, machine int32) float64 {
	return (n.seventh[machine]*n.unit + n.spread) * l.speed[machine]
}

// after returns what value would be with other bytes at two machines.
func (n *norm) after(l *Locality, from, to int32, atFrom, atTo float64) float64 {
	a, b := max(n.load[from]+atFrom*l.speed[from], 0), max(n.load[to]+atTo*l.speed[to], 0)
	sum := max(n.sum-n.eight[from]-n.eight[to]+pow8(a)+pow8(b), 0)
	return math.Pow(sum, 1./power) + n.spread*(n.total-n.load[from]-n.load[to]+a+b)
}

func pow7(v float64) float64 { w := v * v; return w * w * w * v }
func pow8(v float64) float64 { w := v * v; w *= w; return w * w }
