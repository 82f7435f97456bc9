package threshold

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// literal is Algorithm 1 as printed, on float64 numbers rounded to the
// residual's precision after each operation.
type literal struct {
	kind  element.Kind
	round func(float64) float64 // to the residual's precision
	eta   float64
	life  int
	k     int // iteration number
	tau   float64
	error []float64
}

func newLiteral(kind element.Kind, n int, c Config) *literal {
	round := func(v float64) float64 { return float64(float32(v)) }
	if kind == element.Float64 {
		round = func(v float64) float64 { return v }
	}
	return &literal{kind: kind, round: round, eta: c.Sparsity, life: c.Lifespan, error: make([]float64, n)}
}

// sort is Sort(|W|) without what is not finite, which the paper does not know.
func sorted(w []float64) []float64 {
	var s []float64
	for _, v := range w {
		if v-v == 0 {
			s = append(s, math.Abs(v))
		}
	}
	slices.Sort(s)
	return s
}

// push returns what is sent to the server: numbers of the layer's kind.
func (l *literal) push(gradient []float64) (sent []float64) {
	w := make([]float64, len(gradient))
	for i := range w {
		w[i] = l.round(gradient[i] + l.error[i]) // line 2
	}
	if l.k%l.life == 0 { // line 3
		s := sorted(w) // line 4
		l.tau = 0
		if j := int(math.Floor(float64(len(s)) * l.eta)); j >= 1 {
			l.tau = s[j-1] // line 5
		}
	}
	l.k++
	sent = make([]float64, len(w))
	for i, v := range w {
		mask := math.Abs(v) >= l.tau || v != v // line 9
		if mask {
			var b [8]byte
			l.kind.Put(b[:], 0, v)
			sent[i] = l.kind.At(b[:], 0) // line 10
		}
		l.error[i] = l.round(v - sent[i]) // line 11
		if v-v != 0 {
			l.error[i] = 0 // what is not finite never stays
		}
	}
	return sent
}
