package main

import "testing"

// Of 1,000 values at 10% among 4 machines: 4wm(N-1)/N = 12,000 bytes by AllReduce, a tenth
// of that by servers, 2 alpha w m (N-1) = 2,400 by AllGatherv.
func TestTransfer(t *testing.T) {
	f := transfer{values: 1000, machines: 4, alpha: 0.1}
	if a, s, g := f.allReduce(), f.servers(), f.allGather(); a != 12_000 || s != 1200 || g != 2400 {
		t.Errorf("AllReduce %v, servers %v, AllGatherv %v", a, s, g)
	}
}
