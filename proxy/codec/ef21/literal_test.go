package ef21

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// literal is EF21-P as printed, w' = w + C(x - w), on one number after the other.
type literal struct {
	kind  element.Kind
	c     Config
	tau   float64
	known bool
	w     []float64
}

// step returns how many numbers go.
func (l *literal) step(x []float64) (sent int) {
	d := make([]float64, len(x))
	for i := range x {
		d[i] = float64(float32(x[i] - l.w[i]))
	}
	goes := make([]bool, len(x))
	for i := range d {
		goes[i] = l.c.Sparsity == 0
	}
	if l.c.Sparsity > 0 {
		if !l.known {
			sorted := slices.Clone(d)
			for i := range sorted {
				sorted[i] = math.Abs(sorted[i])
			}
			slices.Sort(sorted)
			l.tau = 0
			if rank := int(float64(len(d)) * l.c.Sparsity); rank > 0 {
				l.tau = sorted[rank-1]
			}
		}
		for i := range d {
			if goes[i] = d[i] != 0 && math.Abs(d[i]) >= l.tau; goes[i] {
				sent++
			}
		}
		want := (1 - l.c.Sparsity) * float64(len(d))
		l.known = sent > 0 && math.Abs(float64(sent)-want) <= slack*want+2*math.Sqrt(want)
	}
	var at []int
	for i := range goes {
		if goes[i] {
			at = append(at, i)
		}
	}
	for len(at) > 0 && l.c.Bits > 0 { // bucket by bucket
		bucket := at[:min(len(at), l.c.Bucket)]
		at = at[len(bucket):]
		norm, levels := 0.0, float64(int(1)<<(l.c.Bits-1)-1)
		for _, i := range bucket {
			norm = max(norm, math.Abs(d[i]))
		}
		for _, i := range bucket {
			if norm > 0 {
				code := math.Floor(d[i]/norm*levels + 0.5)
				l.put(i, l.w[i]+norm/levels*code)
			}
		}
	}
	for _, i := range at {
		if l.c.Half && l.kind.Size() > 2 {
			l.put(i, l.w[i]+float64(element.FromBFloat16(element.ToBFloat16(float32(d[i])))))
		} else {
			l.put(i, x[i])
		}
	}
	return sent
}

func (l *literal) put(i int, v float64) {
	var b [8]byte
	l.kind.Put(b[:], 0, v)
	l.w[i] = l.kind.At(b[:], 0)
}
