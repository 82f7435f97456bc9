package dynamic

import "math"

// norm is what is made small, and its slope.
type norm struct {
	value    float64
	sum      float64   // of the powers
	spread   float64   // spread / machines
	load     []float64 // by machine, in bytes a step over relative speed
	price    []float64 // by machine: slope of value by its bytes
	cheapest int32
}

// reset computes all from the loads.
func (n *norm) reset(l *Locality) {
	if len(n.load) != l.k {
		n.load, n.price, n.spread = make([]float64, l.k), make([]float64, l.k), l.o.Spread/float64(l.k)
	}
	n.sum = 0
	total, scale := 0.0, l.scale()
	for i, v := range l.loads {
		n.load[i] = (max(v*scale+l.extra[i], 0) + l.baseOf(i)) * l.speed[i]
		n.sum += pow8(n.load[i])
		total += n.load[i]
	}
	n.value = math.Pow(n.sum, 1./power) + n.spread*total
	unit := math.Pow(n.sum, (1.-power)/power)
	n.cheapest = 0
	for i, v := range n.load {
		slope := 0.0
		if n.sum > 0 {
			slope = pow7(v) * unit
		}
		n.price[i] = (slope + n.spread) * l.speed[i]
		if cheap := n.cheapest; (l.barred == nil || !l.barred[i]) && (l.barred != nil && l.barred[cheap] || n.price[i] < n.price[cheap]) {
			n.cheapest = int32(i)
		}
	}
}

// after returns the value with other bytes at two machines.
func (n *norm) after(l *Locality, from, to int32, atFrom, atTo float64) float64 {
	a, b := max(n.load[from]+atFrom*l.speed[from], 0), max(n.load[to]+atTo*l.speed[to], 0)
	sum := max(n.sum-pow8(n.load[from])-pow8(n.load[to])+pow8(a)+pow8(b), 0)
	total := (n.value-math.Pow(n.sum, 1./power))/max(n.spread, 1e-300) - n.load[from] - n.load[to] + a + b
	return math.Pow(sum, 1./power) + n.spread*total
}

func pow7(v float64) float64 { w := v * v; return w * w * w * v }
func pow8(v float64) float64 { w := v * v; w *= w; return w * w }
