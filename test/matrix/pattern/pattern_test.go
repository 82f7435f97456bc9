package pattern

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without psidecar every pattern ends with what is computed.
func TestDirect(t *testing.T) {
	for _, p := range All() {
		if p.Left > 0 {
			continue // needs processes
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			port, err := hosts.FreePort("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			c := van.Config{Servers: p.Servers, Workers: p.Workers, Root: "127.0.0.1", RootPort: port, NodeHost: "127.0.0.1", Patience: time.Minute, Logger: slog.Default()}
			if p.Resends() {
				c.Resend, c.ResendTimeout, c.Drop = true, 50*time.Millisecond, 3
			}
			o := Options{Exact: true, Out: t.TempDir()}
			g, ctx := errgroup.WithContext(t.Context())
			for _, n := range []struct {
				role pslite.Role
				of   int
			}{{pslite.Scheduler, 1}, {pslite.Server, p.Servers / p.ServersEach}, {pslite.Worker, p.Workers / p.WorkersEach}} {
				for range n.of {
					g.Go(func() error {
						c := c
						c.Role = n.role
						return p.Run(ctx, c, o)
					})
				}
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			p.compare(t, o.Out)
		})
	}
}

func (p *Pattern) compare(t *testing.T, dir string) {
	t.Helper()
	workers, err := p.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var rounds []int
	for _, w := range workers {
		rounds = append(rounds, w.Rounds)
	}
	want, err := p.Expect(rounds)
	if err != nil {
		t.Fatal(err)
	}
	for rank, w := range workers {
		for i := range p.Keys {
			if p.Uses(rank, i) && !bytes.Equal(w.Values[i], want[i]) {
				t.Errorf("worker %d: key %d is %v, want %v", rank, p.Keys[i].Key, p.Keys[i].Kind.Numbers(w.Values[i]), p.Keys[i].Kind.Numbers(want[i]))
			}
		}
	}
}
