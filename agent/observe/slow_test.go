package observe_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/test/replay"
	"github.com/psidecar/psidecar/test/require"
)

// TestSlowRequests: with every answer slow enough each request that was answered is
// told, of its job, with its keys, and sizes and times that can be.
func TestSlowRequests(t *testing.T) {
	for _, recording := range recordings {
		t.Run(recording, func(t *testing.T) {
			f, err := os.Open(require.Capture(t, recording+".pcapng"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			told := map[netip.AddrPort][]counts.Slow{}
			o := observe.New(observe.Options{Locality: counts.DefaultLocalityOptions, Slow: func(job netip.AddrPort, s counts.Slow) { told[job] = append(told[job], s) }})
			if _, err := replay.Read(f, o.Handle); err != nil {
				t.Fatal(err)
			}
			for _, v := range o.Jobs() {
				slow := told[v.Job.Scheduler]
				if n := v.Job.Sums.Totals().Answered; uint64(len(slow)) != n || n == 0 {
					t.Errorf("%d of %d answered requests are told", len(slow), n)
				}
				keyed := 0
				for _, s := range slow {
					if s.Answered < s.Asked || s.Bytes == 0 || s.Worker >= len(v.WorkersByIndex) || s.Server >= len(v.ServersByIndex) {
						t.Fatalf("told is %+v", s)
					}
					if s.Keys > 0 {
						keyed++
					}
				}
				if keyed == 0 {
					t.Errorf("of none of %d requests is known how many keys it had", len(slow))
				}
			}
		})
	}
}
