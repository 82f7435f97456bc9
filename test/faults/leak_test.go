package faults

import "fmt"

// What a service may hold when the job has ended. A proxy keeps the pipes in
// which it spliced until the second garbage collection.
const (
	atRestSockets     = 12
	atRestDescriptors = 100
	atRestGoroutines  = 60
	peakMemory        = 300 << 20
)

// settled waits until the services hold no more than at rest, after a job's
// end, and checks that they never held much memory.
func (f *fleet) settled() {
	f.t.Helper()
	for _, s := range f.sidecars {
		sockets := atRestSockets
		if len(f.config.plan) > 0 { // links of sites, and a connection to the planner
			sockets += 2
		}
		for port, service := range map[int]*service{agentHTTP: s.agent, proxyHTTP: s.proxy} {
			f.await(service.String()+" to let go of what the job needed", func() error {
				if all, open := service.descriptors(f.t); open > sockets || all > atRestDescriptors {
					return fmt.Errorf("%d sockets of %d descriptors", open, all)
				}
				n, err := s.host.Metric(port, "go_goroutines")
				if err == nil && n > atRestGoroutines {
					err = fmt.Errorf("%v goroutines", n)
				}
				return err
			})
			if n := service.peak(f.t); n > peakMemory {
				f.t.Errorf("%s held %d MiB", service, n>>20)
			}
		}
		f.await("the proxy on "+s.host.Name+" to end its connections", func() error {
			if all := f.state(s).Connections; len(all) > 0 {
				return fmt.Errorf("%d are left, among them %+v", len(all), all[0])
			}
			return nil
		})
	}
}
