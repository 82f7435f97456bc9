package live

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// What reports and decisions of a job of a thousand hosts take, of which each tells of
// 1,024 keys in 6.4 s: processor time, whatever else the machine does.
func BenchmarkThousandHosts(b *testing.B) {
	const hosts, keys = 1000, 1024
	service := require.Value(plans.New(b.Context(), &store.Memory{}, plans.Options{Strategy: "locality"}))(b)
	p := New(service, DefaultOptions)
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 1e9-1)
	mix := func(n uint64) uint64 { return (n + 1) * 0x9e3779b97f4a7c15 }
	round := uint64(0)
	reports := func() (all []*api.HostReport) {
		round++
		for h := range uint64(hosts) {
			w := &api.Window{ValueBytes: []uint32{64}, LastUnixNanos: int64(round * 6.4e9)}
			for i := range uint64(keys / 2) {
				w.Keys = append(w.Keys, mix(1<<40+h*keys+i), mix(zipf.Uint64()))
			}
			slices.Sort(w.Keys)
			w.Keys = slices.Compact(w.Keys)
			u := &api.WindowUse{Worker: "worker", Steps: 64}
			for i := range w.GetKeys() {
				u.Keys, u.Pulls, u.Pushes = append(u.Keys, uint32(i)), append(u.Pulls, 16), append(u.Pushes, 16)
			}
			u.Pulled, u.Pushed = u.GetKeys(), u.GetKeys()
			w.Uses = []*api.WindowUse{u}
			all = append(all, &api.HostReport{Host: fmt.Sprint(h), Jobs: []*api.JobReport{{
				Job: testJob, Servers: hosts, Workers: hosts, Window: w, LastUnixNanos: int64(round * 6.4e9),
				Nodes: []*api.Node{{Role: "server", Rank: int32(h), Local: true}}, Steps: []*api.Steps{{Worker: "worker", Steps: 64 * round}},
			}}})
		}
		return all
	}
	var taking, deciding float64
	for b.Loop() {
		b.StopTimer()
		all := reports()
		b.StartTimer()
		from := processor(b)
		for _, r := range all {
			p.Take(r)
		}
		taken := processor(b)
		p.Decide(b.Context())
		taking, deciding = taking+taken-from, deciding+processor(b)-taken
	}
	b.ReportMetric(taking/float64(b.N), "take-s")
	b.ReportMetric(deciding/float64(b.N), "decide-s")
}

// processor is the seconds that this process has used.
func processor(b *testing.B) float64 {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
