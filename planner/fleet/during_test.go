package fleet

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// use is one push of a key.
type use struct {
	at             int // seconds since the hosts' agents began
	host           int
	key            uint64 // below 256
	worker, server string
	micros         int64
}

// reportOf is what a host's agent reports at a moment, in blocks of so many keys.
func reportOf(uses []use, host, at int, width uint64) *api.HostReport {
	j := &api.JobReport{Job: "j:1", SampledOneIn: 1, Exact: true}
	for first := uint64(0); first < 256; first += width {
		j.Blocks = append(j.Blocks, &api.Block{First: first, Last: first + width - 1})
	}
	took := map[string]*history.Latency{}
	for _, u := range uses {
		if u.host != host || u.at > at {
			continue
		}
		j.Bytes += 100
		j.LastUnixNanos = int64(u.at) * second
		i := slices.IndexFunc(j.Traffic, func(p *api.Traffic) bool { return p.Worker == u.worker && p.Server == u.server })
		if i < 0 {
			i = len(j.Traffic)
			j.Traffic = append(j.Traffic, &api.Traffic{Worker: u.worker, Server: u.server})
		}
		j.Traffic[i].ToServer += 100
		j.Traffic[i].Requests++
		w := slices.IndexFunc(j.Uses, func(s *api.Use) bool { return s.Worker == u.worker })
		if w < 0 {
			w = len(j.Uses)
			n := len(j.Blocks)
			j.Uses = append(j.Uses, &api.Use{Worker: u.worker, Pulls: make([]uint64, n), Pushes: make([]uint64, n), PulledBytes: make([]uint64, n), PushedBytes: make([]uint64, n)})
			j.Steps = append(j.Steps, &api.Steps{Worker: u.worker})
			took[u.worker] = new(history.Latency)
		}
		j.Uses[w].Pushes[u.key/width]++
		j.Uses[w].PushedBytes[u.key/width] += 4
		j.Steps[w].Steps++
		took[u.worker].Record(u.micros, 1)
	}
	for _, u := range j.Uses {
		micros, counts := took[u.Worker].Bars()
		j.ByWorker = append(j.ByWorker, &api.Latency{Name: u.Worker, Micros: micros, Counts: counts})
	}
	return &api.HostReport{Host: fmt.Sprint(host), Incarnation: 1, Agent: &api.AgentReport{}, Jobs: []*api.JobReport{j}}
}

// What is shown of a stretch of time is what happened in it, whatever blocks
// the agents laid down meanwhile.
func TestDuring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const every, seconds, hosts = 5, 60, 2
		var uses []use
		for range rapid.IntRange(1, 60).Draw(t, "uses") {
			uses = append(uses, use{
				at: rapid.IntRange(0, seconds).Draw(t, "at"), host: rapid.IntRange(0, hosts-1).Draw(t, "host"),
				key:    uint64(rapid.IntRange(0, 255).Draw(t, "key")),
				worker: fmt.Sprintf("worker%d", rapid.IntRange(0, 2).Draw(t, "worker")),
				server: fmt.Sprintf("server%d", rapid.IntRange(0, 1).Draw(t, "server")),
				micros: rapid.Int64Range(1, 1e6).Draw(t, "micros"),
			})
		}
		at := func(second int) time.Time { return time.Unix(int64(second), 0) }
		reports := func(second int) []*api.HostReport {
			var all []*api.HostReport
			for h := range hosts {
				all = append(all, reportOf(uses, h, second, 64>>min(second/20, 3)))
			}
			return all
		}
		s := &State{
			Reports: func() []*api.HostReport { return reports(seconds) },
			Past: func(to time.Time) ([]*api.HostReport, []time.Time) {
				kept := int(to.Unix()) / every * every
				return reports(kept), []time.Time{at(kept), at(kept)}
			},
		}
		from := rapid.IntRange(1, seconds).Draw(t, "from")
		to := rapid.IntRange(from, seconds).Draw(t, "to")
		asked, last := page.Range{From: at(from)}, seconds
		if rapid.Bool().Draw(t, "until") {
			asked.To, last = at(to), to/every*every
		}
		first := from / every * every
		want, pushes, requests := uint64(0), map[string]uint64{}, map[string]uint64{}
		for _, u := range uses {
			if first < u.at && u.at <= last {
				want += 100
				pushes[u.worker]++
				requests[u.server]++
			}
		}
		traffic := require.Value(s.Traffic("j:1", asked))(t)
		if traffic.TotalBytes != want || !traffic.From.Equal(at(first)) {
			t.Errorf("%d bytes from %v, want %d from %v", traffic.TotalBytes, traffic.From, want, at(first))
		}
		servers := require.Value(s.Servers("j:1", asked))(t)
		for _, load := range servers.Servers {
			if load.Requests != requests[load.Name] {
				t.Errorf("%s: %d requests, want %d", load.Name, load.Requests, requests[load.Name])
			}
		}
		for _, load := range servers.Workers {
			if load.Latency.Count != pushes[load.Name] {
				t.Errorf("%s: %d times, want %d", load.Name, load.Latency.Count, pushes[load.Name])
			}
		}
		h := require.Value(s.Heatmap("j:1", page.HeatmapQuery{Range: asked, Blocks: 256, Last: math.MaxUint64, Measure: page.Pushes}))(t)
		for w, name := range h.Workers {
			for b, block := range h.Blocks {
				n := uint64(0)
				for _, u := range uses {
					if u.worker == name && first < u.at && u.at <= last && uint64(block.First) <= u.key && u.key <= uint64(block.Last) {
						n++
					}
				}
				if h.Counts[w][b] != n {
					t.Errorf("%s, keys %d to %d: %d pushes, want %d", name, block.First, block.Last, h.Counts[w][b], n)
				}
			}
		}
	})
}

// An agent that began within the stretch of time counts whole, one that is
// known for less than that from when it is known.
func TestDuringBeginnings(t *testing.T) {
	uses := []use{{at: 30, worker: "worker0", server: "server0", micros: 1}, {at: 50, worker: "worker0", server: "server0", micros: 1}}
	for _, tc := range []struct {
		name                 string
		started, incarnation int64
		want                 uint64
		from                 int64
	}{
		{"an agent that began since", 20, 1, 200, 10},
		{"a planner that began since", 5, 1, 100, 40},
		{"an agent that began anew", 45, 2, 200, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now, before := reportOf(uses, 0, 60, 64), reportOf(uses, 0, 40, 64)
			now.Agent.StartedUnixNanos, now.Incarnation = tc.started*second, uint64(tc.incarnation)
			s := &State{
				Reports: func() []*api.HostReport { return []*api.HostReport{now} },
				Past: func(time.Time) ([]*api.HostReport, []time.Time) {
					return []*api.HostReport{before}, []time.Time{time.Unix(40, 0)}
				},
			}
			got, err := s.Traffic("j:1", page.Range{From: time.Unix(10, 0)})
			if err != nil || got.TotalBytes != tc.want || !got.From.Equal(time.Unix(tc.from, 0)) {
				t.Errorf("%d bytes from %v (%v), want %d from %d", got.TotalBytes, got.From, err, tc.want, tc.from)
			}
		})
	}
}
