package compact

import (
	"os"
	"testing"

	"github.com/psidecar/psidecar/proxy/pslite/capture"
	"github.com/psidecar/psidecar/test/require"
)

// All messages of real jobs arrive as they were, whichever of their connections
// they took; each node is taken to have a proxy of its own.
func TestRecordings(t *testing.T) {
	for _, name := range []string{"dmlc-kv-2s2w", "dmlc-kv-1s3w", "dmlc-resend-2s2w", "dmlc-heartbeat-2s1w", "byteps-kv-2s2w"} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(require.Capture(t, name+".pcapng"))
			if err != nil {
				t.Fatal(err)
			}
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
					d = &direction{sender: peer(m.From, m.To).NewSender(link, true), receiver: peer(m.To, m.From).NewReceiver(link, false)}
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
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range flows {
				total.plain += d.plain
				total.encoded += d.encoded
				total.messages += d.messages
			}
			if total.messages < 10 || total.encoded >= total.plain {
				t.Errorf("%d messages were encoded, %d bytes for %d", total.messages, total.encoded, total.plain)
			}
			t.Logf("%d messages encoded: %d bytes for %d", total.messages, total.encoded, total.plain)
		})
	}
}
