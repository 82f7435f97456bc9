package compact

import (
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

var _ relay.Codec = (*Codec)(nil)

// ends opens a link between two codecs.
func ends(t *testing.T, dialer, acceptor *Codec, l relay.Link) (direction, direction) {
	t.Helper()
	l.HeadLimit, l.Dialed = 1<<20, true
	there, back, err := dialer.Open(l, acceptor.Offer())
	require.NoError(t, err)
	l.Dialed = false
	thence, thither, err := acceptor.Open(l, dialer.Offer())
	require.NoError(t, err)
	return direction{sender: there.(*Sender), receiver: thither.(*Receiver)}, direction{sender: thence.(*Sender), receiver: back.(*Receiver)}
}

func (d *direction) shut() { d.sender.Close(); d.receiver.Close() }

// Proxies with different limits agree, links of one pair share their requests,
// and what is kept for a pair ends with it.
func TestOpenWithDifferentLimitsAgrees(t *testing.T) {
	small := DefaultLimits
	small.Keys = keylist.Limits{TableBytes: 2048, TableLists: 2, DictionaryKeys: 100, ListBytes: 1 << 20}
	small.RetainedRequests = 2
	w, s := relay.Instance{1}, relay.Instance{2}
	worker, server := New(small), New(DefaultLimits)
	requests, none := ends(t, worker, server, relay.Link{ID: 1, Dialer: w, Acceptor: s})
	answers, none2 := ends(t, server, worker, relay.Link{ID: 1, Dialer: s, Acceptor: w})
	keys := []uint64{10, 20, 40, 90, 91}
	for i := range int32(20) {
		keys[4]++
		requests.pass(t, data(pslite.DMLC, i, true, false, true, keys, nil, nil))
		answers.pass(t, data(pslite.DMLC, i, false, false, true, keys, []byte("abcdefgh"), nil))
	}
	if n := len(worker.peers[s].peer.asked); n != 0 {
		t.Errorf("%d requests are kept after their answers", n)
	}
	for _, d := range []*direction{&requests, &none, &answers, &none2} {
		d.shut()
	}
	if len(worker.idle) != 1 || len(server.idle) != 1 {
		t.Errorf("%d and %d peers are idle, want 1 and 1", len(worker.idle), len(server.idle))
	}
	for i := range byte(3 * mostIdle) {
		a, b := ends(t, worker, server, relay.Link{ID: 9, Dialer: w, Acceptor: relay.Instance{9, i}})
		a.shut()
		b.shut()
	}
	if len(worker.peers) > mostIdle {
		t.Errorf("%d peers are kept, want at most %d", len(worker.peers), mostIdle)
	}
}

func TestOpenRefusesBadOffers(t *testing.T) {
	for _, offer := range []string{"", "{", `{"retained_bytes":-1}`, `{"keys":{"table_lists":-5}}`} {
		if _, _, err := New(DefaultLimits).Open(relay.Link{}, []byte(offer)); err == nil {
			t.Errorf("offer %q was taken", offer)
		}
	}
}
