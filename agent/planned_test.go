package agent

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// millionAt returns a request of a million keys from first on: neighbours, or spread
// over the upper half of all keys.
func millionAt(first uint64, dense bool) counts.Batch {
	const n = 1_000_000
	if dense {
		return counts.Batch{Run: counts.Run{First: first, Step: 1, N: n}}
	}
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = (first+uint64(i))*0xd1342543de82ef95 | 1<<63
	}
	slices.Sort(keys)
	return counts.Batch{Keys: slices.Compact(keys), Ascending: true}
}

// Keys of requests of a million, all at home with the other host's server, are planned to
// go to the host whose worker alone uses them; neighbours as ranges. Later it is others'
// turn.
func TestRequestsOfAMillionKeysArePlanned(t *testing.T) {
	for _, dense := range []bool{false, true} {
		t.Run(fmt.Sprintf("dense=%v", dense), func(t *testing.T) {
			service := require.Value(plans.New(t.Context(), &store.Memory{}, plans.Options{Strategy: "locality"}))(t)
			planner, seen := live.New(service, live.DefaultOptions), map[uint64]bool{}
			const hosts, turns = 2, 3
			var jobs [hosts]*counts.Locality
			var requests [hosts]counts.Batch
			for host := range jobs {
				requests[host] = millionAt(math.MaxUint64/2+1+uint64(host)<<40, dense)
				o := counts.DefaultLocalityOptions
				o.WindowKeys = counts.DefaultWindowKeys
				jobs[host] = counts.NewLocality(o)
			}
			first := 0
			for turn := range turns {
				for host, job := range jobs {
					w := useMillion(t, job, turn, requests[host], fmt.Sprintf("worker%d", host))
					for _, key := range w.GetKeys() {
						seen[key] = true
					}
					planner.Take(&api.HostReport{Host: fmt.Sprintf("h%d", host), Jobs: []*api.JobReport{{
						Job: "198.18.0.1:9000", Servers: hosts, Workers: hosts, Window: w,
						Nodes: []*api.Node{{Name: fmt.Sprintf("server%d", host), Role: "server", Rank: int32(host), Local: true}},
						Steps: []*api.Steps{{Worker: fmt.Sprintf("worker%d", host), Steps: 8}},
					}}})
				}
				planner.Decide(t.Context())
				d := require.Value(service.Describe(t.Context(), &api.DescribeRequest{Job: "198.18.0.1:9000"}))(t)
				if len(d.GetJobs()) != 1 || len(d.GetJobs()[0].GetEpochs()) != 1 {
					t.Fatalf("the plans are %v", d)
				}
				e := d.GetJobs()[0].GetEpochs()[0]
				t.Logf("turn %d: %d keys move as %d ranges: %s", turn, e.GetKeys(), e.GetRanges(), e.GetReason())
				if e.GetKeys() < 1000 || dense && e.GetRanges() > e.GetKeys()/32 {
					t.Errorf("%d keys move as %d ranges", e.GetKeys(), e.GetRanges())
				}
				if turn == 0 {
					first = len(seen)
				}
			}
			if len(seen) < first*turns/2 {
				t.Errorf("%d keys were told in the first turn, %d in %d", first, len(seen), turns)
			}
		})
	}
}

// useMillion has a worker push a request's keys in eight steps of a turn of the sample's,
// and returns the window of that.
func useMillion(t *testing.T, job *counts.Locality, turn int, b counts.Batch, worker string) *api.Window {
	const steps, long = 8, 40e9 // a turn is shorter
	for step := range int32(steps) {
		at := int64(turn*long) + int64(step+1)*1e9
		job.Ask(counts.Request{Worker: 0, Time: at, Timestamp: int32(turn)*steps + step, Push: true})
		b.Each = counts.Sums{counts.Pushes: 1, counts.PushedBytes: 4}
		job.Use(at, b)
	}
	w := windowReport(job.TakeWindow(windowLeast), []string{worker}, false)
	if w.GetLeftOut() == 0 || len(w.GetKeys()) < windowLeast/4 {
		t.Fatalf("%d keys, %d uses are left out", len(w.GetKeys()), w.GetLeftOut())
	}
	return w
}
