package threshold

import (
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

// Bytes on the wire for the gradient of a large layer: at least 80 times fewer
// with 99% sparsity, 100 without positions; at least 16 with 95%.
func TestBytesOnTheWire(t *testing.T) {
	for _, c := range []struct{ sparsity, least, leastWithoutPositions float64 }{
		{0.95, 16, 20}, {0.99, 80, 100}, {0.999, 800, 1000},
	} {
		g := opposites(element.Float32, 4)[0]
		l := require.Value(NewLayer(element.Float32, len(g)/4, Config{Sparsity: c.sparsity, Lifespan: 1}))(t)
		var w Workspace
		var out sparse.Vector
		require.NoError(t, l.Compress(&w, &out, g))
		all, positions := len(out.Append(nil)), len(out.AppendHeader(nil))
		times := float64(len(g)) / float64(all)
		without := float64(len(g)) / float64(all-positions)
		count := float64(out.Count())
		t.Logf("%g: %.2f and %.2f bits a number, %.1f times fewer, without positions %.1f", c.sparsity,
			8*float64(positions)/count, 8*float64(all-positions)/count, times, without)
		if times < c.least || without < c.leastWithoutPositions {
			t.Errorf("sparsity %g: %.1f times fewer bytes, want %g; without positions %.1f, want %g",
				c.sparsity, times, c.least, without, c.leastWithoutPositions)
		}
	}
}
