package redirect

import (
	"testing"

	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
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
			client := start(b, h, "job", "client")
			got := client.do(order{How: "blocking", To: four, Times: b.N})
			if got.Error != "" || got.Wrong > 0 {
				b.Fatalf("%+v", got)
			}
			b.ReportMetric(float64(got.Nanoseconds)/float64(b.N), "ns/connect")
			b.ReportMetric(0, "ns/op")
		})
	}
}
