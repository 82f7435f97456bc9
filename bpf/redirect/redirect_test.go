package redirect

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestConnectsGoWhereTheyShould: every kind of connect goes where it should, the proxy, which
// has no privileges, learns what was meant, and the client sees no proxy.
func TestConnectsGoWhereTheyShould(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	h := n.Host(0)
	four, six, _, _ := serve(t, n.Host(1))
	_, _, loop4, loop6 := serve(t, h)
	mapped := "[::ffff:" + strings.Replace(four, ":", "]:", 1)
	excluded, excluded6, _, _ := serve(t, n.Host(1))
	excludedPort := netip.MustParseAddrPort(excluded).Port()
	if err := r.SetExclusions([]Exclusion{
		{Port: excludedPort},
		{Addresses: netip.PrefixFrom(n.Host(1).IPv6, 128), Port: netip.MustParseAddrPort(excluded6).Port()},
	}); err != nil {
		t.Fatal(err)
	}
	group := attachJob(t, r, h, "job", Policy{})
	startProxy(t, r, h, group, "0s")
	client := startClient(t, h, "job")
	outside := startClient(t, h, "other")
	for _, tc := range []struct {
		name   string
		client clientProcess
		order  order
		reply  string
		peer   string
		reason Reason
	}{
		{"IPv4, not blocking", client, order{How: "go", To: four}, "proxy " + four, four, ReasonRedirected},
		{"IPv6, not blocking", client, order{How: "go", To: six}, "proxy " + six, six, ReasonRedirected},
		{"IPv4, blocking", client, order{How: "blocking", To: four}, "proxy " + four, four, ReasonRedirected},
		{"IPv6, blocking", client, order{How: "blocking", To: six}, "proxy " + six, six, ReasonRedirected},
		{"IPv4 by an IPv6 socket", client, order{How: "mapped", To: four}, "proxy " + four, four, ReasonRedirected},
		{"IPv4-mapped address", client, order{How: "blocking", To: mapped}, "proxy " + four, four, ReasonRedirected},
		{"bound to an address, IPv4", client, order{How: "bound", To: four}, "proxy " + four, four, ReasonRedirected},
		{"bound to an address, IPv6", client, order{How: "bound", To: six}, "proxy " + six, six, ReasonRedirected},
		{"nobody there, for the proxy to find out", client, order{How: "go", To: "198.18.0.2:1"}, "proxy 198.18.0.2:1", "198.18.0.2:1", ReasonRedirected},
		{"with the proxy's mark", client, order{How: "marked", To: four}, "direct " + four, four, ReasonExempt},
		{"multipath TCP", client, order{How: "mptcp", To: four}, "proxy " + four, "", ReasonRedirected}, // see Limits in README.md
		{"bound to a device", client, order{How: "device", To: four}, "direct " + four, four, ReasonBoundDevice},
		{"loopback, IPv4", client, order{How: "go", To: loop4}, "direct " + loop4, loop4, ReasonLoopback},
		{"loopback, IPv6", client, order{How: "go", To: loop6}, "direct " + loop6, loop6, ReasonLoopback},
		{"excluded port", client, order{How: "go", To: excluded}, "direct " + excluded, excluded, ReasonExcluded},
		{"excluded address and port", client, order{How: "go", To: excluded6}, "direct " + excluded6, excluded6, ReasonExcluded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := counts(t, r)
			got := tc.client.do(tc.order)
			if got.Reply != tc.reply || got.Peer != tc.peer && tc.peer != "" {
				t.Errorf("%+v; want reply %q of %s", got, tc.reply, tc.peer)
			}
			after := counts(t, r)
			for reason := range after {
				want := before[reason]
				switch {
				case Reason(reason) == tc.reason:
					want++
				case Reason(reason) == ReasonAnswered && tc.reason == ReasonRedirected:
					want += 2 // it asks twice
				}
				if after[reason] != want {
					t.Errorf("%s: %d after, want %d", Reason(reason), after[reason], want)
				}
			}
		})
	}
	before := counts(t, r)
	if got := outside.do(order{How: "go", To: four}); got.Reply != "direct "+four {
		t.Errorf("from another cgroup: %+v", got)
	}
	if after := counts(t, r); after != before {
		t.Errorf("a connect of another cgroup was counted: %v", after)
	}
}

// TestLoopbackPolicy: with Policy.Loopback those go to the proxy too, but not
// those to its own listener.
func TestLoopbackPolicy(t *testing.T) {
	r := openState(t)
	h := hoststest.New(t, hosts.Config{Hosts: 1}).Host(0)
	_, _, loop4, loop6 := serve(t, h)
	group := attachJob(t, r, h, "job", Policy{Loopback: true})
	_, netns := startProxy(t, r, h, group, "0s")
	client := startClient(t, h, "job")
	for _, to := range []string{loop4, loop6} {
		if got := client.do(order{How: "go", To: to}); got.Reply != "proxy "+to || got.Peer != to {
			t.Errorf("%+v", got)
		}
	}
	var l redirectListener
	require.NoError(t, r.maps["listeners"].Lookup(redirectPlace{Netns: netns, Group: uint64(group)}, &l))
	own := fmt.Sprintf("127.0.0.1:%d", bigEndian(l.Port4))
	got := client.do(order{How: "go", To: own})
	if !strings.HasPrefix(got.Reply, "proxy  error:") || counts(t, r)[ReasonOwnListener] != 1 || counts(t, r)[ReasonUnknown] != 1 {
		t.Errorf("a connect to the proxy itself: %+v, %v", got, counts(t, r))
	}
}

// TestNoListener: without a listener connects go direct or are refused as the
// policy says, whatever else may listen at the port.
func TestNoListener(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	h := n.Host(0)
	four, six, _, _ := serve(t, n.Host(1))
	_, _, alien4, alien6 := serve(t, h) // not the proxy's: has no mark
	group := attachJob(t, r, h, "job", Policy{})
	proxy, netns := startProxy(t, r, h, group, "0s")
	client := startClient(t, h, "job")
	expect := func(what string, closed bool, direct, refused Reason) {
		t.Helper()
		require.NoError(t, r.SetPolicy(group, Policy{FailClosed: closed}))
		reason := direct
		if closed {
			reason = refused
		}
		before := counts(t, r)[reason]
		for _, to := range []string{four, six} {
			for _, how := range []string{"go", "blocking", "mptcp"} {
				got := client.do(order{How: how, To: to})
				if closed && got.Errno != syscall.ECONNREFUSED && got.Errno != syscall.EPERM {
					t.Errorf("%s, fails closed: %+v", what, got)
				}
				if !closed && got.Reply != "direct "+to {
					t.Errorf("%s, fails open: %+v", what, got)
				}
			}
		}
		if after := counts(t, r)[reason]; after < before+6 || after > before+8 { // refused multipath TCP tries plain TCP
			t.Errorf("%s: %s %d times, want 6 to 8", what, reason, after-before)
		}
	}
	require.NoError(t, r.SetPolicy(group, Policy{FailClosed: true}))
	for _, to := range []string{four, six} {
		if got := client.do(order{How: "mptcp", To: to}); got.Reply != "proxy "+to {
			t.Errorf("multipath TCP, fails closed: %+v", got)
		}
	}
	require.NoError(t, proxy.Kill())
	<-proxy.Done()
	expect("proxy killed", false, ReasonListenerGone, 0)
	expect("proxy killed", true, 0, ReasonRefusedListenerGone)
	alien := Ports{netip.MustParseAddrPort(alien4).Port(), netip.MustParseAddrPort(alien6).Port()}
	require.NoError(t, r.SetListener(netns, group, alien))
	expect("port taken by another", false, ReasonListenerGone, 0)
	expect("port taken by another", true, 0, ReasonRefusedListenerGone)
	require.NoError(t, r.RemoveListener(netns, group))
	expect("none registered", false, ReasonNoListener, 0)
	expect("none registered", true, 0, ReasonRefusedNoListener)

	startProxy(t, r, h, group, "0s")
	if got := client.do(order{How: "go", To: four}); got.Reply != "proxy "+four {
		t.Errorf("with a new proxy: %+v", got)
	}
}

// TestClosedBeforeAccepted: the destination of a connection is known to a slow
// proxy although its client is gone.
func TestClosedBeforeAccepted(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	h := n.Host(0)
	group := attachJob(t, r, h, "job", Policy{})
	proxy, _ := startProxy(t, r, h, group, "500ms")
	client := startClient(t, h, "job")
	for _, to := range []string{"198.18.0.9:9", "[2001:2::9]:9"} {
		if got := client.do(order{How: "early", To: to}); got.Error != "" {
			t.Fatal(got)
		}
	}
	got := map[string]bool{proxy.Line(): true, proxy.Line(): true}
	for _, want := range []string{"early for 198.18.0.9:9", "early for [2001:2::9]:9"} {
		if !got[want] {
			t.Errorf("the proxy says %v, not %q", got, want)
		}
	}
}

// TestGroupsAreApart: two groups in one network namespace go to listeners of
// their own, and one's end is nothing to the other.
func TestGroupsAreApart(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	h := n.Host(0)
	four, _, _, _ := serve(t, n.Host(1))
	one := attachJob(t, r, h, "one", Policy{})
	two := attachJob(t, r, h, "two", Policy{FailClosed: true})
	startProxy(t, r, h, one, "0s")
	first, second := startClient(t, h, "one"), startClient(t, h, "two")
	if got := first.do(order{How: "go", To: four}); got.Reply != "proxy "+four {
		t.Errorf("one: %+v", got)
	}
	if got := second.do(order{How: "go", To: four}); got.Error == "" {
		t.Errorf("two has no listener and fails closed: %+v", got)
	}
	require.NoError(t, r.Detach(two))
	if got := second.do(order{How: "go", To: four}); got.Reply != "direct "+four {
		t.Errorf("two, detached: %+v", got)
	}
	if got := first.do(order{How: "go", To: four}); got.Reply != "proxy "+four {
		t.Errorf("one, after two was detached: %+v", got)
	}
	if err := r.Detach(two); err == nil {
		t.Error("detached twice")
	}
	if _, err := r.Attach(h.Cgroup(), Policy{}); err == nil || !strings.Contains(err.Error(), "lies in the other") {
		t.Errorf("attaching around a group: %v", err)
	}
	if _, err := r.Attach(t.TempDir(), Policy{}); err == nil || !strings.Contains(err.Error(), "cgroup v2") {
		t.Errorf("attaching to a folder: %v", err)
	}
}

// TestThousandsOfConnects: none is lost, mixed up or remembered after its end.
func TestThousandsOfConnects(t *testing.T) {
	r := openState(t)
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	h := n.Host(0)
	group := attachJob(t, r, h, "job", Policy{})
	startProxy(t, r, h, group, "0s")
	const clients, times = 8, 500
	var all sync.WaitGroup
	for i := range clients {
		to := fmt.Sprintf("198.18.7.%d:%d", i+1, 7000+i)
		if i%2 == 1 {
			to = fmt.Sprintf("[2001:2::7:%d]:%d", i+1, 7000+i)
		}
		c := startClient(t, h, "job")
		all.Go(func() {
			got := c.do(order{How: "go", To: to, Times: times})
			if got.Reply != "proxy "+to || got.Peer != to || got.Wrong > 0 {
				t.Errorf("%+v; want %s", got, to)
			}
		})
	}
	all.Wait()
	c := counts(t, r)
	if c[ReasonRedirected] != clients*times || c[ReasonAnswered] != 2*clients*times || c[ReasonUnknown] != 0 {
		t.Errorf("%v", c)
	}
	var key uint64
	var value redirectRemembered
	left, known := 0, 0
	for entries := r.maps["ended"].Iterate(); entries.Next(&key, &value); {
		to, ok := r.Destination(key)
		if p := to.Port(); !ok || p < 7000 || p >= 7000+clients {
			t.Errorf("the destination of a socket that has closed is %v, %v", to, ok)
		}
		known++
	}
	if known < clients*(times-1) {
		t.Errorf("the destinations of %d closed sockets are known, want %d", known, clients*(times-1))
	}
	for entries := r.maps["sockets"].Iterate(); entries.Next(&key, &value); {
		left++
	}
	if left > clients { // the last of each may still be closing
		t.Errorf("%d sockets remembered among those that live after their end", left)
	}
}
