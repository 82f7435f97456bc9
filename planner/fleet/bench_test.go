package fleet

import (
	"fmt"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// What a look at the alpha of a job of a thousand hosts takes, each of which tells of its
// worker's traffic with every server: processor time, whatever else the machine does.
func BenchmarkAlphaOfAThousandHosts(b *testing.B) {
	const hosts, blocks = 1000, 256
	var reports []*api.HostReport
	for h := range hosts {
		worker := fmt.Sprintf("worker%d", h)
		j := &api.JobReport{Job: "j", Steps: []*api.Steps{{Worker: worker, Steps: 10}}}
		u := &api.Use{Worker: worker}
		for i := range uint64(blocks) {
			each := uint64(math.MaxUint64 / blocks)
			j.Blocks = append(j.Blocks, &api.Block{First: i * each, Last: i*each + each - 1, Keys: 1000})
			u.Pulls, u.Pushes = append(u.Pulls, 10*i), append(u.Pushes, 10*i)
			u.PulledBytes, u.PushedBytes = append(u.PulledBytes, 40*i), append(u.PushedBytes, 40*i)
		}
		j.Uses = []*api.Use{u}
		for _, role := range []string{"server", "worker"} {
			j.Nodes = append(j.Nodes, &api.Node{Name: fmt.Sprintf("%s%d", role, h), Role: role, Rank: int32(h), Address: fmt.Sprintf("198.18.%d.%d:%d", h/200, h%200+1, 8000+len(role)), Local: true})
		}
		for server := range hosts {
			j.Traffic = append(j.Traffic, &api.Traffic{Worker: worker, Server: fmt.Sprintf("server%d", server), ToServer: 1, ToWorker: 1, Requests: 1})
		}
		reports = append(reports, &api.HostReport{Host: fmt.Sprintf("h%d", h), Jobs: []*api.JobReport{j}})
	}
	s := &State{Reports: func() []*api.HostReport { return reports }}
	used := func() float64 {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	before := used()
	for b.Loop() {
		require.Value(page.AlphaOf(s, "j", 64, nil))(b)
	}
	b.ReportMetric((used()-before)/float64(b.N), "cpu-s/look")
}
