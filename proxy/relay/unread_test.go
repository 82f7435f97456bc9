package relay

import (
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// Of a stream that begins with a message of no dialect it is known that it passes, and
// whose it is where that shows.
func TestUnreadStreamsAreTold(t *testing.T) {
	hetu := []byte{0x10, 1, 0x18, 0, 0x20, 0, 0x28, 3, 0x30, 0, 0x38, 1} // a request: DensePull
	for name, c := range map[string]struct {
		meta   []byte
		unread bool
		fork   pslite.Fork
	}{
		"a fork":       {hetu, true, pslite.Hetu},
		"nobody known": {[]byte("no meta \xff\xff"), true, pslite.NoFork},
		"PS-lite":      {(&pslite.Meta{Request: true, Push: true}).Append(nil, pslite.DMLC), false, pslite.NoFork},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPath(t, 1, NewMemory(1<<20), nil)
			b := appendFrame(greetingAndReady("DEALER"), c.meta, false)
			require.NoError(t, transfer(p.client, p.server, b, rand.New(rand.NewPCG(1, 1))))
			if got := p.dialer.ToFar.Counts(); got.Unread != c.unread || got.Fork != c.fork {
				t.Errorf("unread %v of %q, want %v of %q", got.Unread, got.Fork, c.unread, c.fork)
			}
			p.server.Close()
			p.wait(t)
		})
	}
}
