package threshold

import (
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

// What waits ends with the push that was named, and not before.
func TestEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct{ end, ending int }{{50, 20}, {50, 50}, {50, 0}, {1, 1}} {
		config := DefaultConfig
		config.End, config.Ending = c.end, c.ending
		l := require.Value(NewLayer(element.Float32, 5000, config))(t)
		var w Workspace
		var out sparse.Vector
		g := make([]byte, 4*5000)
		for push := 1; push <= c.end+3; push++ {
			for i := range 5000 {
				element.Float32.Put(g, i, r.NormFloat64())
			}
			require.NoError(t, l.Compress(&w, &out, g))
			left, _ := l.Residual()
			if (left == 0) != (push > c.end) {
				t.Fatalf("end %d over %d: %d numbers wait after push %d", c.end, c.ending, left, push)
			}
		}
	}
}
