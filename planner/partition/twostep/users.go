package twostep

import (
	"context"
	"math/bits"

	"github.com/psidecar/psidecar/planner/graph"
)

// users has, for each parameter, a bit for each machine whose worker uses it.
type users struct {
	// The number of words per parameter.
	words int
	mask  []uint64
}

// usersOf collects the machines of each parameter's samples, on all cores.
func usersOf(ctx context.Context, g *graph.Graph, samples []int32, k int) (*users, error) {
	u := &users{words: (k + 63) / 64}
	u.mask = graph.MakeHuge[uint64](g.Params() * u.words)
	const chunk = 1 << 14
	crew := newCrew((g.Params() + chunk - 1) / chunk)
	defer crew.stop()
	crew.each(func(_, c int) {
		if ctx.Err() != nil {
			return
		}
		for p := c * chunk; p < min(c*chunk+chunk, g.Params()); p++ {
			mask := u.mask[p*u.words : (p+1)*u.words]
			for _, s := range g.SamplesOf(p) {
				i := samples[s]
				mask[i/64] |= 1 << (i % 64)
			}
		}
	})
	return u, ctx.Err()
}

// usedBy reports whether machine i uses parameter p.
func (u *users) usedBy(p, i int) bool { return u.mask[p*u.words+i/64]>>(i%64)&1 == 1 }

// count returns lambda, the number of machines that use p.
func (u *users) count(p int) (n int) {
	for _, word := range u.mask[p*u.words : (p+1)*u.words] {
		n += bits.OnesCount64(word)
	}
	return n
}

// each calls do with each machine that uses p, ascending.
func (u *users) each(p int, do func(i int)) {
	for w, word := range u.mask[p*u.words : (p+1)*u.words] {
		for ; word != 0; word &= word - 1 {
			do(w*64 + bits.TrailingZeros64(word))
		}
	}
}
