package route

import (
	"bytes"
	"errors"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// inside is a key of a server of two, by its place in the server's range.
func inside(server int32, place uint64) uint64 { return plan.HomeRange(server, 2).First + place }

// wholeAsk is a request of BytePS with all fields set that only its dialect has.
func wholeAsk(t *testing.T, timestamp int32, push bool, keys ...uint64) (*pslite.Message, [][]byte) {
	t.Helper()
	all := ask(pslite.BytePSRaw, timestamp, push, !push, true, keys)
	var m pslite.Meta
	require.NoError(t, m.Decode(all[0], pslite.BytePSRaw))
	m.BytePS = pslite.BytePS{Key: keys[0], Addr: 0x7f0012345678, ValLen: 77, Option: 5, SID: 9, SrcDevType: 1, SrcDevID: 2, DstDevType: 3, DstDevID: 4}
	all[0] = m.Append(nil, pslite.BytePSRaw)
	var of pslite.Message
	var d pslite.Detector
	if is, err := of.Decode(&d, all); err != nil || is != pslite.BytePSRaw {
		t.Fatalf("the request is in %v: %v", is, err)
	}
	return &of, all
}

// wholeRouter is the router of a job of two servers of BytePS, two keys of the first of
// which are displaced, one of them to where it is at home.
func wholeRouter() *Router {
	table := NewTable(2)
	table.Set([]plan.Range{{Keys: plan.One(inside(0, 1)), Owner: 1}, {Keys: plan.Keys{First: inside(1, 0), Last: inside(1, 999)}, Owner: 0}, {Keys: plan.One(inside(1, 7)), Owner: 1}})
	r := New(NewTable(2))
	r.Open(table)
	r.AddWorker(9, &forgetful{})
	return r
}

// A request for one displaced key goes to its owner to the last byte; others go where they
// were asked; what cannot be told apart or has no single owner is an error.
func TestWholeRequestsAreRerouted(t *testing.T) {
	for _, c := range []struct {
		name   string
		server int32
		keys   []uint64
		owner  int32 // -1: an error
	}{
		{"at home", 0, []uint64{inside(0, 0)}, 0},
		{"displaced", 0, []uint64{inside(0, 1)}, 1},
		{"displaced, one of a range", 1, []uint64{inside(1, 999)}, 0},
		{"at home, inside a range", 1, []uint64{inside(1, 7)}, 1},
		{"behind a range", 1, []uint64{inside(1, 1000)}, 1},
		{"several at home", 0, []uint64{inside(0, 2), inside(0, 3)}, 0},
		{"several, one of them displaced", 0, []uint64{inside(0, 1), inside(0, 2)}, -1},
		{"displaced, of a server that is not its home", 1, []uint64{inside(0, 1)}, 1}, // asked of its owner
		{"displaced, of another instance", 0, []uint64{inside(1, 5)}, 0},              // likewise
		{"at home, of another instance", 1, []uint64{inside(0, 5)}, 1},
	} {
		for _, push := range []bool{true, false} {
			r := wholeRouter()
			m, want := wholeAsk(t, 3, push, c.keys...)
			owner, err := r.Recipient(9, c.server, &m.Meta, m.Keys())
			if c.owner < 0 {
				if !errors.Is(err, ErrWhole) {
					t.Errorf("%s: to server %d, %v", c.name, owner, err)
				}
				continue
			}
			if owner != c.owner || err != nil {
				t.Errorf("%s: to server %d, %v; want %d", c.name, owner, err, c.owner)
				continue
			}
			if owner == c.server {
				r.PassWhole(9, c.server, &m.Meta)
				if got := r.Counts(); got.Plain != 1 || got.Rerouted != 0 {
					t.Errorf("%s: counted as %+v", c.name, got)
				}
				continue
			}
			r.Reroute(9, c.server, owner, m, pslite.BytePSRaw)
			out := r.Out()
			if len(out) != 1 || out[0].Server != owner || out[0].Worker != 9 || out[0].ToWorker || !bytes.Equal(bytes.Join(out[0].Frames, []byte("|")), bytes.Join(want, []byte("|"))) {
				t.Errorf("%s: %d messages, want one to server %d as it came", c.name, len(out), owner)
			}
			if got := r.Counts(); got.Rerouted != 1 || got.Plain != 0 {
				t.Errorf("%s: counted as %+v", c.name, got)
			}
		}
	}
	r := wholeRouter()
	r.Table().Set([]plan.Range{{Keys: plan.One(inside(0, 4)), Owner: plan.Parted(2)}})
	if m, _ := wholeAsk(t, 1, true, inside(0, 4)); true {
		if _, err := r.Recipient(9, 0, &m.Meta, m.Keys()); !errors.Is(err, ErrWhole) {
			t.Errorf("a key in parts: %v", err)
		}
	}
	three := New(NewTable(4)) // as instances of a node have it: server 1 is asked for a key of server 0's
	table := NewTable(4)
	table.Set([]plan.Range{{Keys: plan.One(5), Owner: 3}})
	three.Open(table)
	three.AddWorker(9, &forgetful{})
	if m, _ := wholeAsk(t, 1, true, 5); true {
		if _, err := three.Recipient(9, 1, &m.Meta, m.Keys()); !errors.Is(err, ErrWhole) {
			t.Errorf("a displaced key, asked of a server that is neither owner nor home: %v", err)
		}
	}
}

// Two slices of one request that would be on one connection are an error, whichever comes
// first; a worker that begins its timestamps anew is none.
func TestSlicesOfWholeRequests(t *testing.T) {
	go1, _ := wholeAsk(t, 5, true, inside(0, 1)) // displaced to server 1
	home, _ := wholeAsk(t, 5, true, inside(1, 2000))
	r := wholeRouter()
	r.Reroute(9, 0, 1, go1, pslite.BytePSRaw)
	if _, err := r.Recipient(9, 1, &home.Meta, home.Keys()); !errors.Is(err, ErrWhole) {
		t.Errorf("the slice that is at home comes second: %v", err)
	}
	r.PassWhole(9, 1, &home.Meta)
	if _, err := r.Recipient(9, 0, &go1.Meta, go1.Keys()); !errors.Is(err, ErrWhole) {
		t.Errorf("the slice that is rerouted comes second: %v", err)
	}
	r.ForgetAsked(9)
	if owner, err := r.Recipient(9, 0, &go1.Meta, go1.Keys()); owner != 1 || err != nil {
		t.Errorf("of a worker that has begun anew: server %d, %v", owner, err)
	}
	r.Reroute(9, 0, 1, go1, pslite.BytePSRaw)
	if owner, err := r.Recipient(9, 0, &go1.Meta, go1.Keys()); owner != 1 || err != nil {
		t.Errorf("repeated: server %d, %v", owner, err)
	}
}

// With PS_RESEND the worker hears an acknowledgement by the server that it asked, made of
// the one by the server that has the request; others pass.
func TestRerouteIsAcknowledged(t *testing.T) {
	r := wholeRouter()
	m, _ := wholeAsk(t, 5, true, inside(0, 1))
	m.Meta.AppID = 3
	r.Reroute(9, 0, 1, m, pslite.BytePSRaw)
	r.Out()
	at := func(timestamp, recver int32) uint64 {
		return pslite.Signature(&pslite.Meta{AppID: 3, Timestamp: timestamp, Request: true}, 9, recver)
	}
	if r.ServerAck(1, 9, at(5, pslite.ServerID(1))) {
		t.Error("the owner's acknowledgement passes")
	}
	out := r.Out()
	if len(out) != 1 || !out[0].ToWorker || out[0].Worker != 9 {
		t.Fatalf("%d messages", len(out))
	}
	var got pslite.Meta
	if err := got.Decode(out[0].Frames[0], pslite.BytePSRaw); err != nil || got.Control.Cmd != pslite.Ack || got.Control.MsgSig != at(5, pslite.ServerID(0)) {
		t.Errorf("the worker gets %+v, %v; want signature %x", got.Control, err, at(5, pslite.ServerID(0)))
	}
	for name, signature := range map[string]uint64{"another request": at(6, pslite.ServerID(1)), "an answer": at(5, pslite.ServerID(1)) &^ 1} {
		if !r.ServerAck(1, 9, signature) {
			t.Errorf("the acknowledgement of %s does not pass", name)
		}
	}
	if !r.ServerAck(0, 9, at(5, pslite.ServerID(0))) {
		t.Error("the acknowledgement of another server does not pass")
	}
}
