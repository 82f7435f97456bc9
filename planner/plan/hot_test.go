package plan

import (
	"math"
	"slices"
	"testing"
)

// flows counts what hosts send and receive.
type flows []float64

func (f flows) move(from, to int, bytes float64) {
	if from != to {
		f[from] += bytes
		f[to] += bytes
	}
}

// The formulas are what comes of counting each transfer.
func TestBusiestByCounting(t *testing.T) {
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %g, counted %g", name, got, want)
		}
	}
	for hosts := 2; hosts <= 12; hosts++ {
		ring := make(flows, hosts)
		for range 2 * (hosts - 1) { // scatter-reduce, then all-gather
			for h := range hosts {
				ring.move(h, (h+1)%hosts, 1/float64(hosts))
			}
		}
		near("ring", Ring(1, hosts), slices.Max(ring))
		for servers := 1; servers <= hosts; servers++ {
			f := make(flows, hosts)
			for h := range hosts {
				for s := range servers {
					f.move(h, s, 1/float64(servers))
					f.move(s, h, 1/float64(servers))
				}
			}
			near("parts", Divided(1, hosts, servers), slices.Max(f))
		}
		chain, turned := make(flows, hosts), make(flows, hosts)
		pass := func(f flows, first int, bytes float64) {
			for i := 1; i < hosts; i++ { // from the first over all others to the server, host 0
				from := 1 + (first+i-1)%(hosts-1)
				to := 0
				if i < hosts-1 {
					to = 1 + (first+i)%(hosts-1)
				}
				f.move(from, to, bytes)
				f.move(to, from, bytes)
			}
		}
		pass(chain, 0, 1)
		for first := range hosts - 1 {
			pass(turned, first, 1/float64(hosts-1))
		}
		near("chain", Chained(1, hosts, false), slices.Max(chain))
		near("chain in turns", Chained(1, hosts, true), slices.Max(turned))
	}
}

// The figures of proxy/README.md: 25 million floats, 8 hosts, 200 Mbit/s.
func TestHotServer(t *testing.T) {
	const bytes, rate, hosts = 100e6, 25e6, 8
	ring, plain := Ring(bytes, hosts), DividedTime(bytes, rate, hosts, 1)
	for servers := 1; servers <= hosts; servers *= 2 {
		t.Logf("%d servers with equal parts: %.2f times a ring's bytes at the busiest host, %.1f times plain's steps", servers,
			Divided(bytes, hosts, servers)/ring, plain/DividedTime(bytes, rate, hosts, servers))
	}
	for _, pieces := range []int{1, 7, 70} {
		t.Logf("a chain in %d pieces: %.2f times, %.2f in turns, %.1f times plain's steps", pieces,
			Chained(bytes, hosts, false)/ring, Chained(bytes, hosts, pieces >= hosts-1)/ring, plain/ChainedTime(bytes, rate, hosts, pieces))
	}
	if parts, chain := Divided(bytes, hosts, hosts)/ring, Chained(bytes, hosts, true)/ring; parts > 1.1 || chain > 1.1 {
		t.Errorf("parts on all hosts take %.2f times a ring's bytes, a chain %.2f", parts, chain)
	}
}
