package dynamic

import (
	"math"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// Uses of no bytes change nothing, whether the item is known or not: rates and loads
// stay numbers.
func TestUsesOfNoBytesChangeNothing(t *testing.T) {
	it := &Items{Owner: []int32{0, 0}, Home: []int32{0, 0}, Size: []float32{100, 100}}
	l := NewLocality(Options{Machines: 2})
	none := []Use{{Item: 0, Machine: 1}, {Item: 1, Machine: 0}, {Item: 1, Machine: 1}}
	for epoch, uses := range [][]Use{none, {{Item: 1, Machine: 1, Bytes: 40000}}, none, none} {
		moves := require.Value(l.Plan(it, &Epoch{Steps: 20, Uses: uses}))(t)
		for _, m := range moves {
			it.Owner[m.Item] = m.To
		}
		for machine, load := range l.Loads() {
			if math.IsNaN(load) || math.IsInf(load, 0) {
				t.Fatalf("after epoch %d machine %d moves %v bytes a step", epoch, machine, load)
			}
		}
	}
	if part, other := l.rates.part(1, 1), l.rates.part(0, 1); part != 1 || other != 0 {
		t.Errorf("shares of %v and %v, want 1 of the item that was used and 0 of the other", part, other)
	}
}
