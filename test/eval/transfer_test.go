package main

import (
	"math"
	"testing"
)

// TestTransfer: of 1,000 values at 10% among 4 machines, 4wm(N-1)/N = 12,000 bytes by
// AllReduce, a tenth of that by servers, 2 alpha w m (N-1) = 2,400 by AllGatherv.
func TestTransfer(t *testing.T) {
	f := transfer{values: 1000, machines: 4, alpha: 0.1}
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"AllReduce", f.allReduce(), 12_000}, {"servers", f.servers(), 1200}, {"AllGatherv", f.allGather(), 2400}} {
		if math.Abs(c.got-c.want) > 1e-9*c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}
