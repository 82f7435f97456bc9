package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy whose mesh port opens a moment after the first connection to its host
// is waited for, and that is counted.
func TestMeshPortThatOpensLate(t *testing.T) {
	in, job, late := listen(t, workerHost), newServer(t), listen(t, serverHost)
	mesh := addrPort(late.Addr()).Port()
	late.Close()
	p, _ := start(t, Options{MeshPort: mesh, PeerPatience: time.Minute}, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	first := require.Value(net.Dial("tcp", in.Addr().String()))(t)
	defer first.Close()
	require.Eventually(t, "the host is waited for", func() bool {
		p.peers.mu.Lock()
		defer p.peers.mu.Unlock()
		return !p.peers.hosts[job.addr().Addr()].first.IsZero()
	})
	l := require.Value(net.Listen("tcp", late.Addr().String()))(t)
	start(t, Options{MeshPort: mesh}, nil, l)
	echo(t, first.(*net.TCPConn), job.next(t))
	s := p.conns.sums()
	if s.total[kindLink] != 1 || s.total[kindDirect] != 0 || s.waits[true] != 1 || s.waits[false] != 0 {
		t.Errorf("%v connections, waited for %v", s.total, s.waits)
	}
}

// Two proxies write the file at once, while one takes the place of the other:
// neither's write fails, and one of them is what the next one reads.
func TestTwoProxiesKeepHosts(t *testing.T) {
	dir := t.TempDir()
	file, host := filepath.Join(dir, "peers"), netip.MustParseAddr("198.18.0.7")
	var group sync.WaitGroup
	for range 2 {
		p := newPeers(time.Second)
		p.file = file
		p.putPeer(host, peer{met: true})
		group.Go(func() {
			for range 200 {
				if err := p.writeFile(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	next := newPeers(time.Second)
	next.keepFile(file, slog.Default())
	if !next.known(host) {
		t.Error("the next proxy does not know a host that both had met")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v: %v", left, err)
	}
}

// A proxy that takes the place of another waits for hosts that had one, as that did.
func TestNextProxyKnowsHosts(t *testing.T) {
	in, job, away := listen(t, workerHost), newServer(t), listen(t, serverHost)
	mesh, file := addrPort(away.Addr()).Port(), filepath.Join(t.TempDir(), "state", "peers")
	before, host := newPeers(time.Second), job.addr().Addr()
	before.keepFile(file, slog.Default())
	for _, lost := range []string{"198.18.0.7", "198.18.0.8"} {
		before.met(netip.MustParseAddr(lost))
		before.missed(netip.MustParseAddr(lost), noProxy)
	}
	before.met(host)
	before.awaitSaved(time.Minute)
	away.Close()
	p, _ := start(t, Options{MeshPort: mesh, PeerPatience: time.Nanosecond, PeerGrace: time.Minute, PeersFile: file},
		[]Listener{{Listener: in, Destination: Fixed(job.addr())}})
	if p.peers.known(netip.MustParseAddr("198.18.0.7")) {
		t.Error("a host counts as one with a proxy that had none any more")
	}
	first := require.Value(net.Dial("tcp", in.Addr().String()))(t)
	defer first.Close()
	require.Eventually(t, "the host is waited for, or not", func() bool {
		p.peers.mu.Lock()
		defer p.peers.mu.Unlock()
		h := p.peers.hosts[host]
		return !h.away.IsZero() || !h.until.IsZero()
	})
	l := require.Value(net.Listen("tcp", away.Addr().String()))(t)
	start(t, Options{MeshPort: mesh}, nil, l)
	echo(t, first.(*net.TCPConn), job.next(t))
	if s := p.conns.sums(); s.total[kindLink] != 1 || s.total[kindDirect] != 0 {
		t.Errorf("%v connections", s.total)
	}
}

// A file that is no list of hosts does no harm, and where none can be written all
// else works.
func TestNoListOfHosts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "peers")
	require.NoError(t, os.WriteFile(file, []byte("\x00\n198.18.0.1\nnobody\n"), 0o600))
	p := newPeers(time.Second)
	p.keepFile(file, slog.Default())
	if len(p.hosts) != 1 || !p.known(netip.MustParseAddr("198.18.0.1")) {
		t.Errorf("%v", p.hosts)
	}
	var log bytes.Buffer
	p.keepFile(filepath.Join(file, "below a file"), slog.New(slog.NewTextHandler(&log, nil)))
	p.met(netip.MustParseAddr("198.18.0.2"))
	p.met(netip.MustParseAddr("198.18.0.3"))
	p.awaitSaved(time.Minute)
	if n := strings.Count(log.String(), "--state-dir"); n != 1 || !p.known(netip.MustParseAddr("198.18.0.3")) {
		t.Errorf("%d complaints: %s", n, log.String())
	}
}

// A host is waited for once: for as long as patience lasts since the first
// connection to it, and again only when nothing has been heard of it for long.
func TestMayAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience, retry = time.Second, 10 * time.Second
		host, refused := netip.MustParseAddr("198.18.0.1"), fmt.Errorf("dialing: %w", syscall.ECONNREFUSED)
		p := newPeers(retry)
		expect := func(what string, err error, want bool) {
			t.Helper()
			if p.mayAppear(host, err, patience) != want {
				t.Errorf("%s: waited for %v, want %v", what, !want, want)
			}
		}
		expect("a link", nil, false)
		expect("silence", errors.New("timeout"), false)
		expect("the first connection", refused, true)
		time.Sleep(600 * time.Millisecond)
		expect("a second one", refused, true)
		time.Sleep(400 * time.Millisecond)
		expect("after a second", refused, false)
		p.missed(host, noProxy)
		expect("given up", refused, false)
		time.Sleep(retry)
		if try, _ := p.try(host); !try {
			t.Error("the host is not tried again")
		}
		expect("tried again", refused, false)
		time.Sleep(forgotten)
		expect("forgotten", refused, true)
		p.met(host)
		expect("met, and gone", refused, false)
	})
}
