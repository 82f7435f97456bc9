package proxy

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A link that breaks while both streams end, when one end may have forgotten the connection
// already, costs neither process a byte and counts as no loss.
func TestLinksBreakAtTheEnd(t *testing.T) {
	h := keepingHosts(t, func(w, s *Options) {})
	rng := rand.New(rand.NewPCG(5, 6))
	for range 5 {
		var all sync.WaitGroup
		for range 30 {
			client := h.dial(t)
			server := h.job.next(t)
			stream := anyBytes(rng)[:1+rng.IntN(4<<10)]
			for i, way := range [][2]net.Conn{{client, server}, {server, client}} {
				all.Go(func() { exchange(t, way[0], way[1], stream, uint64(i)) })
			}
		}
		for _, p := range []*Proxy{h.worker, h.server} {
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Microsecond)
			p.breakLinks()
		}
		all.Wait()
	}
	taken, lost := uint64(0), uint64(0)
	for _, p := range []*Proxy{h.worker, h.server} {
		// An end that does not know that the other needs it no more waits for takenUpWithin.
		require.Eventually(t, "the connections are over", func() bool { return p.kept.state().Now == 0 })
		s := p.kept.state()
		taken, lost = taken+s.Taken, lost+s.Lost
	}
	if t.Logf("taken up %d times", taken); lost > 0 {
		t.Errorf("lost %d", lost)
	}
}
