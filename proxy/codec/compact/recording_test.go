package compact

import (
	"os"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// All messages of real jobs arrive as they were, whichever of their connections
// they took; each node is taken to have a proxy of its own.
func TestRecordings(t *testing.T) {
	for _, tc := range []struct {
		name     string
		messages int // that are worth encoding; BytePS sends one key at a time, with many equal values
	}{
		{"dmlc-kv-2s2w", 72}, {"dmlc-kv-1s3w", 78}, {"dmlc-resend-2s2w", 72}, {"dmlc-heartbeat-2s1w", 36}, {"byteps-kv-2s2w", 48},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := os.Open(require.Capture(t, tc.name+".pcapng"))
			require.NoError(t, err)
			defer f.Close()
			peers := map[[2]string]*Peer{}
			peer := func(from, to string) *Peer {
				if peers[[2]string{from, to}] == nil {
					peers[[2]string{from, to}] = NewPeer(DefaultLimits)
				}
				return peers[[2]string{from, to}]
			}
			flows := map[capture.Flow]*direction{}
			var total direction
			_, err = capture.Read(f, capture.Options{Data: true}, func(m *capture.Message) error {
				d := flows[m.Flow]
				if d == nil {
					link := uint64(len(flows))
					d = &direction{sender: peer(m.From, m.To).newSender(link, true, 1<<20, new(relay.Loan)), receiver: peer(m.To, m.From).newReceiver(link, false, new(relay.Loan))}
					flows[m.Flow] = d
				}
				var frames [][]byte
				if m.Identity != nil {
					frames = append(frames, m.Identity)
				}
				frames = append(frames, m.Meta.Append(nil, m.Dialect))
				d.pass(t, append(frames, m.Data...))
				return nil
			})
			require.NoError(t, err)
			for _, d := range flows {
				total.plain += d.plain
				total.encoded += d.encoded
				total.messages += d.messages
			}
			t.Logf("%d messages encoded: %d bytes for %d", total.messages, total.encoded, total.plain)
			if total.messages != tc.messages {
				t.Errorf("%d messages were encoded, want %d", total.messages, tc.messages)
			}
			if tc.messages > 0 && 3*total.encoded > total.plain {
				t.Errorf("%d bytes for %d, want a third at most", total.encoded, total.plain)
			}
		})
	}
}
