package faults

import (
	"fmt"

	"github.com/psidecar/psidecar/test/hoststest"
)

// What a service may hold when the job has ended. A proxy keeps the pipes in
// which it spliced until the second garbage collection.
const (
	atRestSockets     = 12
	atRestDescriptors = 100
	atRestGoroutines  = 60
)

// settled waits until the services hold no more than at rest, after a job's
// end, and logs how much memory each ever held.
func (f *fleet) settled() {
	f.t.Helper()
	for _, s := range f.sidecars {
		sockets, goroutines := atRestSockets, atRestGoroutines
		if len(f.config.plan) > 0 { // links of sites, and a connection to the planner
			sockets, goroutines = sockets+4, goroutines+20
		}
		for port, service := range map[int]*service{agentHTTP: s.agent, proxyHTTP: s.proxy} {
			f.await(service.String()+" to let go of what the job needed", func() error {
				if all, open := service.descriptors(f.t); open > sockets || all > atRestDescriptors {
					return fmt.Errorf("%d sockets of %d descriptors", open, all)
				}
				n, err := hoststest.Metric(s.host, port, "go_goroutines")
				if err == nil && int(n) > goroutines {
					err = fmt.Errorf("%v goroutines", n)
				}
				return err
			})
			f.t.Logf("%s held %d MiB", service, service.peak(f.t)>>20)
		}
		f.await("the proxy on "+s.host.Name+" to end its connections", func() error {
			if all := f.state(s).Connections; len(all) > 0 {
				return fmt.Errorf("%d are left, among them %+v", len(all), all[0])
			}
			return nil
		})
	}
}
