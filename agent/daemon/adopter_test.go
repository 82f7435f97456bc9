package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// spared is a [Spared] whose proxy is there and takes what it is given.
type spared struct {
	mu       sync.Mutex
	calls    []string
	unneeded map[handover.Source]bool
}

func (s *spared) note(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	return nil
}

func (s *spared) noted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *spared) Takes(string) bool                      { return true }
func (s *spared) Spares(string) (now, once bool)         { return true, true }
func (s *spared) Unneeded() map[handover.Source]bool     { return s.unneeded }
func (s *spared) Take(_ string, to netip.AddrPort) error { return s.note(fmt.Sprint("take ", to)) }
func (s *spared) Hold(_ string, to netip.AddrPort, d time.Duration) error {
	return s.note(fmt.Sprint("hold ", to, " ", d))
}

// A connection whose link is slow is taken in, and one that gains nothing by the proxy is let out:
// there connects wait until the proxy has closed its end too, and take their old way where that is
// not awaited.
func TestAdopterSteers(t *testing.T) {
	const to = "198.18.0.9:9000"
	held := fmt.Sprint("hold ", to, " ", 2*(holdFor+closeFor))
	for _, c := range []struct {
		name         string
		direct, slow bool
		unneeded     bool
		ends         bool // the proxy closes its end
		want         []string
	}{
		{name: "direct, fast link", direct: true},
		{name: "direct, slow link", direct: true, slow: true, want: []string{"take " + to}},
		{name: "in the path", slow: true},
		{name: "in the path, gains nothing", unneeded: true, ends: true, want: []string{held, "hold " + to + " 0s"}},
		{name: "in the path, ends late", unneeded: true, want: []string{held, "take " + to}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := begin(t, "asked")
			end := <-r.conns
			defer end.Close()
			require.Value(end.Write(make([]byte, leastHandshake)))(t)
			ends := discover.Ends{Local: end.RemoteAddr().(*net.TCPAddr).AddrPort(), Peer: end.LocalAddr().(*net.TCPAddr).AddrPort()}
			d := Connection{Local: ends.Local, Peer: netip.MustParseAddrPort(to), Via: ends.Peer, Dialect: pslite.DMLC}
			for { // until the child has read the handshake
				all := require.Value(discover.Connections("/proc/self/ns/net"))(t)
				if s := all[ends]; s.Received >= leastHandshake && s.Unread == 0 && s.Quiet >= quietFor {
					d.Cookie = s.Cookie
					break
				}
			}
			proxy := &spared{}
			if c.unneeded {
				proxy.unneeded = map[handover.Source]bool{{Address: d.Local}: true}
			}
			a := NewAdopter(AdopterOptions{Proc: "/proc", Proxy: proxy, Connections: func() []Connection { return []Connection{d} },
				Owner: func(netip.AddrPort, netip.AddrPort) (int, string, bool) { return r.Process.Pid, "/job", true }})
			a.waits[d.Cookie], a.sampled = &bottleneck{is: c.slow}, time.Now().Add(time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var closing sync.WaitGroup
			if c.direct { // the child's goes to this process all the same
				d.Via = d.Peer
				a.sockets = func(string) (map[discover.Ends]discover.Connection, error) {
					all, err := discover.Connections("/proc/self/ns/net")
					return map[discover.Ends]discover.Connection{{Local: d.Local, Peer: d.Via}: all[ends]}, err
				}
			}
			for tries := 0; len(proxy.noted()) == 0 && len(c.want) > 0 || tries == 0; tries++ {
				a.judgeConnections(ctx, time.Now(), &closing)
			}
			if len(c.want) == 0 {
				if got := proxy.noted(); len(got) > 0 {
					t.Errorf("%q", got)
				}
				return
			}
			for len(a.ended) == 0 { // the thread was not idle
				a.judgeConnections(ctx, time.Now(), &closing)
			}
			require.Value(io.Copy(io.Discard, end))(t)
			if c.ends {
				end.Close()
			} else {
				cancel()
			}
			closing.Wait()
			got := proxy.noted()
			if len(got) > len(c.want) { // tries in vain
				got = got[len(got)-len(c.want):]
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", proxy.noted(), c.want)
			}
			if a.isHeld(d.Peer) {
				t.Error("other connections to there are left alone for good")
			}
			s := a.State()
			if moved := s.Adopted + s.Left; moved != 1 && (c.direct || c.ends) {
				t.Errorf("%d connections moved: %+v", moved, s)
			}
		})
	}
}
