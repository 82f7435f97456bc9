package redirect

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Connects of a group that is spared go direct but for those to where they are taken; there they
// fail while they are held, and go direct when that is over, by time or by word.
func TestSparedConnects(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	h := n.Host(0)
	four, six, _, _ := serve(t, n.Host(1))
	group := attachJob(t, r, h, "job", Policy{Spare: true})
	startProxy(t, r, h, group, "0s")
	client := startClient(t, h, "job")
	do := func(f func(GroupID, netip.AddrPort) error) func() {
		return func() {
			for _, to := range []string{four, six} {
				require.NoError(t, f(group, netip.MustParseAddrPort(to)))
			}
		}
	}
	hold := func(within time.Duration) func() {
		return do(func(g GroupID, to netip.AddrPort) error { return r.Hold(g, to, within) })
	}
	policy := func(p Policy) func() {
		return func() {
			require.NoError(t, r.SetPolicy(group, p))
		}
	}
	for _, c := range []struct {
		name   string
		first  func()
		reply  string // before the address
		reason Reason
	}{
		{"spared", func() {}, "direct ", ReasonSpared},
		{"taken", do(r.Take), "proxy ", ReasonRedirected},
		{"held", hold(time.Hour), "", ReasonRefusedHeld},
		{"held no longer", hold(0), "direct ", ReasonSpared},
		{"held, and the time is over", hold(time.Nanosecond), "direct ", ReasonSpared},
		{"taken again", do(r.Take), "proxy ", ReasonRedirected},
		{"held once more", hold(time.Hour), "", ReasonRefusedHeld},
		{"fails closed", policy(Policy{Spare: true, FailClosed: true}), "proxy ", ReasonRedirected},
		{"not spared", policy(Policy{}), "proxy ", ReasonRedirected},
	} {
		c.first()
		before := counts(t, r)[c.reason]
		for _, to := range []string{four, six} {
			got := client.do(order{How: "go", To: to})
			if c.reply == "" && got.Errno != syscall.ECONNREFUSED && got.Errno != syscall.EPERM || c.reply != "" && got.Reply != c.reply+to {
				t.Errorf("%s: %+v", c.name, got)
			}
		}
		if n := counts(t, r)[c.reason] - before; n != 2 {
			t.Errorf("%s: %d connects count as %s, want 2", c.name, n, c.reason)
		}
	}
	// Detaching leaves nothing for another group.
	require.NoError(t, r.Detach(group))
	var w redirectWay
	if err := r.maps[waysMap].NextKey(nil, &w); err == nil {
		t.Errorf("left behind: %+v", w)
	}
}
