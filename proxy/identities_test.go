package proxy

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy is at the host at whose mesh port it answers, and at no other; what
// another says of itself does not make it so.
func TestPeersAreWhereTheyAnswer(t *testing.T) {
	withJobs := func() *jobs.Jobs {
		all := require.Value(jobs.New(jobs.Options{Dir: t.TempDir()}))(t)
		return all
	}
	mesh := listen(t, serverHost)
	port := addrPort(mesh.Addr()).Port()
	other, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), port).String())
	for range 20 { // somebody has that port
		if err == nil {
			break
		}
		mesh = listen(t, serverHost)
		port = addrPort(mesh.Addr()).Port()
		other, err = net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), port).String())
	}
	require.NoError(t, err)
	at, _ := start(t, Options{MeshPort: port, Jobs: withJobs()}, nil, mesh)
	elsewhere, _ := start(t, Options{MeshPort: port, Jobs: withJobs()}, nil, other)
	judge, _ := start(t, Options{MeshPort: port, Jobs: withJobs()}, nil)
	host := netip.MustParseAddr(serverHost)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		name string
		id   identity
		ok   bool
	}{
		{"the proxy there", identity{instance: at.instance}, true},
		{"another proxy", identity{instance: elsewhere.instance}, false},
		{"another certificate", identity{instance: at.instance, key: link.Key{1}}, false},
	} {
		err := (&peerOf{judge, c.id}).At(ctx, host)
		if (err == nil) != c.ok || err != nil && reason.Of(err) != reason.Forged {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	soon, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if err := (&peerOf{judge, identity{instance: at.instance}}).At(soon, netip.MustParseAddr("127.0.0.4")); reason.Of(err) != reason.NoPeer {
		t.Errorf("where nobody answers: %v", err)
	}
}

// A proxy that was replaced speaks for its host a while longer, and no more than
// a few are remembered.
func TestIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIdentities()
		host := netip.MustParseAddr("198.18.0.1")
		of := func(n byte) identity { return identity{key: link.Key{n}} }
		expect := func(what string, n byte, want bool) {
			t.Helper()
			if ok, _ := i.has(host, of(n)); ok != want {
				t.Errorf("%s: %v", what, ok)
			}
		}
		expect("nobody", 1, false)
		i.noteAnswer(host, of(1))
		time.Sleep(10 * identityLasts)
		expect("the only one, long ago", 1, true)
		i.noteAnswer(host, of(1))
		i.noteAnswer(host, of(2))
		expect("the one before", 1, true)
		time.Sleep(identityLasts)
		expect("the one before, long ago", 1, false)
		expect("the last one", 2, true)
		for n := range byte(100) {
			i.noteAnswer(host, of(10+n))
		}
		if n := len(i.hosts[host].seen); n != identitiesPerHost {
			t.Errorf("%d are remembered of a host", n)
		}
	})
}

func TestVisitsAreBounded(t *testing.T) {
	var v visits
	one, other := handshake.SourceOf(netip.MustParseAddr("198.18.0.1")), handshake.SourceOf(netip.MustParseAddr("198.18.0.2"))
	n := 0
	for v.begin(one) {
		n++
	}
	if n != visitsPerSource || !v.begin(other) {
		t.Errorf("one source has %d links, another may have one more", n)
	}
	v.end(one)
	if !v.begin(one) {
		t.Error("after the end of one there is no room for another")
	}
	for i := range 100 {
		s := handshake.SourceOf(netip.AddrFrom4([4]byte{198, 19, byte(i), 1}))
		for v.begin(s) {
		}
	}
	if v.all != maxVisits {
		t.Errorf("%d links in all, at most %d should be", v.all, maxVisits)
	}
}
