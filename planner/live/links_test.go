package live

import (
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
)

// Two hosts without a server use keys that are all at home with server 0. How
// many of them server 1 gets depends on how fast its host's link is.
func TestUnequalLinks(t *testing.T) {
	for _, c := range []struct {
		name     string
		links    [4]uint32 // of the hosts; 0 and 1 have the servers
		min, max uint64    // keys that move to server 1
		busiest  string    // how the reason begins
	}{
		{"alike, unknown", [4]uint32{}, 7, 9, "h0 moves 512 bytes"},
		{"alike, known", [4]uint32{10000, 10000, 10000, 10000}, 7, 9, "h0 moves 512 bytes"},
		{"server 1 by a slow one", [4]uint32{10000, 4000, 10000, 10000}, 2, 5, "h0 moves 512 bytes"},
		{"server 0 by a slow one", [4]uint32{1000, 10000, 10000, 10000}, 13, 16, "h0 moves 512 bytes"},
		// The workers' links are what takes the time, and no move helps those.
		{"the workers by slow ones", [4]uint32{10000, 10000, 100, 100}, 0, 0, "no plan"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, false, nil)
			f.steps += 10
			for host := range 4 {
				var keys []uint64
				for k := range uint64(8) {
					keys = append(keys, uint64(host)*100+k)
				}
				r := f.report(host, keys...)
				if host < 2 {
					r.Jobs[0].Window = nil
				} else {
					r.Jobs[0].Nodes = nil
				}
				r.Machine = &api.Machine{LinkMbit: c.links[host]}
				f.planner.Take(r)
			}
			f.planner.Decide(t.Context())
			epochs := f.shown(t).GetEpochs()
			if c.max == 0 && len(epochs) == 0 {
				return
			}
			if len(epochs) != 1 || epochs[0].GetKeys() < c.min || epochs[0].GetKeys() > c.max || !strings.HasPrefix(epochs[0].GetReason(), c.busiest) {
				t.Fatalf("the plans are %v; want one that moves %d to %d keys", epochs, c.min, c.max)
			}
			for i, h := range epochs[0].GetHosts() {
				if h.GetLinkMbit() != float64(c.links[i]) {
					t.Errorf("%s: the plan counts with %v Mbit/s", h.GetHost(), h.GetLinkMbit())
				}
			}
		})
	}
}

// What is planned follows links that slow down and recover, and hosts that join and leave,
// while the job runs. Hosts 2 and 3, and later 4, have no server; they use keys that are all
// at home with server 0.
func TestPlansFollowHosts(t *testing.T) {
	f := newFleet(t, false, nil)
	decide := func(links map[int]uint32) {
		f.steps += 10
		for host, mbit := range links {
			var keys []uint64
			for k := range uint64(8) {
				keys = append(keys, uint64(host)*100+k)
			}
			r := f.report(host, keys...)
			if r.Machine = (&api.Machine{LinkMbit: mbit}); host < 2 {
				r.Jobs[0].Window = nil
			} else {
				r.Jobs[0].Nodes = nil
			}
			f.planner.Take(r)
		}
		f.planner.Decide(t.Context())
	}
	for _, phase := range []struct {
		name     string
		links    map[int]uint32 // of the hosts that report
		rounds   int
		min, max uint64 // keys that are to go to server 1
		hosts    int
	}{
		{"all links alike", map[int]uint32{0: 10000, 1: 10000, 2: 10000, 3: 10000}, 1, 7, 9, 4},
		{"server 1's link slows down", map[int]uint32{0: 10000, 1: 4000, 2: 10000, 3: 10000}, 1, 2, 5, 4},
		{"it recovers", map[int]uint32{0: 10000, 1: 10000, 2: 10000, 3: 10000}, 1, 7, 9, 4},
		{"a host joins", map[int]uint32{0: 10000, 1: 10000, 2: 10000, 3: 10000, 4: 10000}, 5, 11, 13, 5},
		{"two hosts leave", map[int]uint32{0: 10000, 1: 10000, 3: 10000}, 12 * patience, 3, 5, 5},
	} {
		for range phase.rounds {
			decide(phase.links)
		}
		epochs := f.shown(t).GetEpochs()
		if len(epochs) != 1 {
			t.Fatalf("%s: the plans are %v", phase.name, epochs)
		}
		if e := epochs[0]; e.GetKeys() < phase.min || e.GetKeys() > phase.max || len(e.GetHosts()) != phase.hosts {
			t.Errorf("%s: %d keys move, %d hosts: %s; want %d to %d and %d", phase.name, e.GetKeys(), len(e.GetHosts()), e.GetReason(), phase.min, phase.max, phase.hosts)
		}
	}
}

// A host that does not know its link is taken to have the mean of the others'.
func TestSpeeds(t *testing.T) {
	for _, c := range []struct {
		links []uint32
		want  []float64
	}{
		{[]uint32{0, 0}, nil},
		{[]uint32{10, 30, 0}, []float64{10, 30, 20}},
		{[]uint32{10, 30}, []float64{10, 30}},
	} {
		j := &job{links: c.links}
		if got := j.speeds(); !slices.Equal(got, c.want) {
			t.Errorf("links %v: speeds %v, want %v", c.links, got, c.want)
		}
	}
}
