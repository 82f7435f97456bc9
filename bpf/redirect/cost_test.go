package redirect

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkConnect measures a connect() over loopback, redirected, let go for
// want of a listener, and in a cgroup that is not attached.
func BenchmarkConnect(b *testing.B) {
	for _, tc := range []struct {
		name           string
		attach, listen bool
	}{{"plain", false, false}, {"no listener", true, false}, {"redirected", true, true}} {
		b.Run(tc.name, func(b *testing.B) {
			r := openState(b)
			h := hoststest.New(b, hosts.Config{Hosts: 1}).Host(0)
			var group GroupID
			if tc.attach {
				group = attachJob(b, r, h, "job", Policy{})
			}
			if tc.listen {
				startProxy(b, r, h, group, "0s")
			}
			four, _, _, _ := serve(b, h)
			client := startClient(b, h, "job")
			if tc.attach {
				measuring := require.Value(ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME)))(b)
				defer measuring.Close()
			}
			got := client.do(order{How: "blocking", To: four, Times: b.N})
			if got.Error != "" || got.Wrong > 0 {
				b.Fatalf("%+v", got)
			}
			b.ReportMetric(float64(got.Nanoseconds)/float64(b.N), "ns/connect")
			if tc.attach {
				stats := require.Value(r.ProgramStats(group))(b)
				for _, s := range stats {
					if s.Runs > 0 {
						b.ReportMetric(float64(s.RunTime.Nanoseconds())/float64(b.N), s.Program+"-ns/connect")
					}
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkGetsockopt measures what the program costs those who ask for
// something else, in the cgroup of the listeners.
func BenchmarkGetsockopt(b *testing.B) {
	for _, attach := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "attached"}[attach], func(b *testing.B) {
			r := openState(b)
			h := hoststest.New(b, hosts.Config{Hosts: 1}).Host(0)
			if attach {
				dir := require.Value(h.Group("sidecar"))(b)
				require.NoError(b, r.AttachProxy(dir))
			}
			got := startClient(b, h, "sidecar").do(order{How: "getsockopt", Times: b.N})
			if got.Error != "" {
				b.Fatalf("%+v", got)
			}
			b.ReportMetric(float64(got.Nanoseconds)/float64(b.N), "ns/call")
			b.ReportMetric(0, "ns/op")
		})
	}
}
