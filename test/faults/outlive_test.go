package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
)

// A job that repeats nothing goes on, and its sums are exact, while the proxies that
// carry it are killed again and again: any of them, and two in a row of which the second
// is one that has just begun to take over.
func TestOutlived(t *testing.T) {
	secured := withTLS(t)
	any := func(f *fleet, random *rand.Rand) { f.sidecars[random.IntN(4)].proxy.kill() }
	for _, c := range []struct {
		name string
		args []string
		kill func(f *fleet, random *rand.Rand)
	}{
		{"any", []string{"--insecure"}, any},
		{"any, TLS", secured, any},
		{"twice", []string{"--insecure"}, func(f *fleet, random *rand.Rand) {
			s := f.sidecars[random.IntN(4)]
			old := s.proxy.Current()
			s.proxy.kill()
			f.await("another proxy", func() error { return s.proxy.runs(old) })
			time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
			s.proxy.kill()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, config{proxyArgs: append([]string{"--outlive"}, c.args...)})
			r := f.start(f.counting(200))
			r.training()
			random := rand.New(rand.NewPCG(1, 2))
			kills := 0
			for ; !r.over() && kills < 8; kills++ {
				c.kill(f, random)
				time.Sleep(200*time.Millisecond + time.Duration(random.Int64N(int64(300*time.Millisecond))))
			}
			r.exact()
			if kills < 3 {
				t.Errorf("only %d kills", kills)
			}
			f.await("nothing to be held", func() error {
				for _, s := range f.sidecars {
					if n, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_kept_connections"); err != nil || n > 6 {
						return fmt.Errorf("%v held on %s, %v", n, s.host.Name, err)
					}
				}
				return nil
			})
			f.settled()
			t.Logf("%d kills", kills)
		})
	}
}
