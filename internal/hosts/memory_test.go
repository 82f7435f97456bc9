package hosts_test

import (
	"os/exec"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A process that needs more than its group may hold is killed, and counted; one
// that needs less is not.
func TestLimitMemory(t *testing.T) {
	dd := require.Program(t, "dd")
	h := hoststest.New(t, hosts.Config{Hosts: 1}).Host(0)
	const limit = 64 << 20
	g, err := h.LimitMemory("limited", limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		block string
		kills int
	}{{"16M", 0}, {"256M", 1}} {
		p, err := h.StartIn("limited", g.Enter(exec.Command(dd, "if=/dev/zero", "of=/dev/null", "count=1", "bs="+c.block)))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(t.Context()); (err != nil) != (c.kills > 0) {
			t.Errorf("a process that needs %s ends with %v", c.block, err)
		}
		peak, err := g.Peak()
		if err != nil || peak < 16<<20 || peak > limit {
			t.Errorf("at most %d bytes were held, %v", peak, err)
		}
		if kills, err := g.Kills(); err != nil || kills != c.kills {
			t.Errorf("%d were killed, want %d, %v", kills, c.kills, err)
		}
	}
}
