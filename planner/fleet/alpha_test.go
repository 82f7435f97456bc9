package fleet

import (
	"math"
	"testing"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// Four workers on two hosts: ten keys that all use in each step, and a thousand of which
// each uses one in a hundred.
func TestAlphaOfAllHosts(t *testing.T) {
	const steps, dense, sparse = 200, 10, 1000
	host := func(name string, workers ...string) *api.HostReport {
		r := &api.JobReport{
			Job: "j:1", SampledOneIn: 1, Exact: true, DistinctKeys: dense + sparse,
			Blocks: []*api.Block{{First: 0, Last: dense - 1, Keys: dense}, {First: dense, Last: math.MaxUint64, Keys: sparse}},
		}
		for i, w := range workers {
			made := uint64(steps * (i + 1)) // one is twice as far
			pushes := []uint64{dense * made, sparse / 100 * made}
			r.Uses = append(r.Uses, &api.Use{
				Worker: w, Pushes: pushes, Pulls: []uint64{0, 0}, PulledBytes: []uint64{0, 0}, PushedBytes: []uint64{4 * pushes[0], 64 * pushes[1]},
			})
			r.Steps = append(r.Steps, &api.Steps{Worker: w, Steps: made})
			r.Traffic = append(r.Traffic, &api.Traffic{Worker: w, Server: "server0", Requests: made})
			r.Nodes = append(r.Nodes, &api.Node{Name: w, Role: "worker", Rank: int32(i), Local: true})
		}
		return &api.HostReport{Host: name, Jobs: []*api.JobReport{r}}
	}
	a := require.Value(page.AlphaOf(stateOf(host("a", "worker0", "worker1"), host("b", "worker2", "worker3")), "j:1", 64, nil))(t)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	if len(a.Ranges) != 2 || a.Machines != 2 || a.Each != 2 || a.Workers != 4 {
		t.Fatalf("%+v", a)
	}
	near("alpha of the dense keys", a.Ranges[0].Alpha, 1)
	near("alpha of the sparse keys", a.Ranges[1].Alpha, 0.01)
	near("alpha", a.Alpha, (dense*4+0.01*sparse*64)/(dense*4+sparse*64))
	// Two workers a machine, half of what they use elsewhere, both ways, and as much as a server.
	near("the servers' bytes", a.Forms["servers"], 2*4*0.5*(dense*4+0.01*sparse*64))
	near("a ring's bytes of the dense keys", a.Ranges[0].Forms["all_reduce"], 4*0.5*dense*4)
	if a.Ranges[0].Least != "host_sums" || a.Least != "host_sums" {
		t.Errorf("least: %s, of the dense keys %s; want host_sums", a.Least, a.Ranges[0].Least)
	}
}

// The only server is on a host without workers, and host b's link is slow: what counts is
// the time that links take, by where workers and servers really are.
func TestAlphaBySlowLinks(t *testing.T) {
	const keys, steps = 100, 50
	host := func(name string, mbit uint32, workers ...string) *api.HostReport {
		r := &api.JobReport{Job: "j:1", SampledOneIn: 1, Exact: true, DistinctKeys: keys, Servers: 1, Blocks: []*api.Block{{First: 0, Last: keys - 1, Keys: keys}}}
		for i, w := range workers {
			r.Uses = append(r.Uses, &api.Use{Worker: w, Pushes: []uint64{keys * steps}, Pulls: []uint64{0}, PulledBytes: []uint64{0}, PushedBytes: []uint64{4 * keys * steps}})
			r.Steps = append(r.Steps, &api.Steps{Worker: w, Steps: steps})
			r.Traffic = append(r.Traffic, &api.Traffic{Worker: w, Server: "server0", Requests: steps})
			r.Nodes = append(r.Nodes, &api.Node{Name: w, Role: "worker", Rank: int32(i), Local: true})
		}
		if len(workers) == 0 {
			r.Nodes = append(r.Nodes, &api.Node{Name: "server0", Role: "server", Local: true})
		}
		return &api.HostReport{Host: name, Machine: &api.Machine{LinkMbit: mbit}, Jobs: []*api.JobReport{r}}
	}
	for _, tc := range []struct {
		name         string
		server, slow uint32 // speeds of the links of the server's host and of host b, Mbit/s
		busiest      string
		servers      float64 // bytes of the busiest, as it is
		chosen       string
	}{
		{"the server's host moves most", 100, 100, "s", 2 * 400 * 4, "host_sums"},
		{"the slow host's link takes longer", 1000, 10, "b", 2 * 400, "servers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := page.AlphaOf(stateOf(host("a", 100, "worker0", "worker1", "worker2"), host("b", tc.slow, "worker3"), host("s", tc.server)), "j:1", 64, nil)
			if err != nil || len(a.Ranges) != 1 || a.Even {
				t.Fatalf("%+v, %v", a, err)
			}
			if a.Machines != 2 || a.Each != 3 || a.Busiest["servers"] != tc.busiest || a.Forms["servers"] != tc.servers || a.Ranges[0].Chosen != tc.chosen {
				t.Errorf("%+v, want %+v", a, tc)
			}
		})
	}
}
