package route

import (
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// remembering is a ledger of a job that retransmits.
type remembering struct {
	forgetful
	resend, split bool
	seen          map[ID]bool
}

func (l *remembering) Resend() bool    { return l.resend }
func (l *remembering) UseResend()      { l.resend = true }
func (l *remembering) Open(k Kept)     { l.seen[k.ID] = true; l.split = l.split || k.Own != 0 }
func (l *remembering) Seen(id ID) bool { return l.seen[id] }
func (l *remembering) Split() bool     { return l.split }

// pushOf is a push of a key by a customer of worker 9's.
func pushOf(customer, timestamp int32, key uint64) *pslite.Message {
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push = true, true
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = 0, customer, timestamp
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{key}), pslite.AppendFloat32(nil, []float32{1})}
	return &m
}

// A request that counts as seen, and is not under way, goes to its server, who
// knows whether it has it, as long as that is who would know: it may have been
// seen for another reason than that it arrived. One whose key is elsewhere, or may
// have been, is acknowledged: what its server never had was split.
func TestWhatWasSeenGoesToItsServer(t *testing.T) {
	for _, c := range []struct {
		name   string
		split  bool // some request was
		key    uint64
		passes bool
	}{
		{"nothing was ever split", false, 1, true},
		{"the key is displaced now", false, 2, false},
		{"it may have been split", true, 1, false},
	} {
		table := NewTable(2)
		table.Set([]plan.Range{{Keys: plan.One(2), Owner: 1}})
		r := New(table)
		r.Open(table)
		r.AddWorker(9, &remembering{resend: true, split: c.split, seen: map[ID]bool{{Timestamp: 7}: true}})
		m := pushOf(0, 7, c.key)
		if passes := r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC); passes != c.passes {
			t.Errorf("%s: it passes: %v", c.name, passes)
		}
		if !c.passes {
			require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
		}
		if out := r.Out(); (len(out) == 0) != c.passes || !c.passes && !out[0].ToWorker {
			t.Errorf("%s: %v is said", c.name, out)
		}
		if n := len(r.UnderWay()); n > 0 || r.Counts().Repeated != 1 {
			t.Errorf("%s: %d requests are under way, %d were repeated", c.name, n, r.Counts().Repeated)
		}
	}
}

// A request that waits when the job turns out to repeat what is lost is the same
// when it comes again: customers are not told apart any more.
func TestWhatWaitsIsRecognisedWhenItComesAgain(t *testing.T) {
	table := NewTable(2)
	table.Set([]plan.Range{{Keys: plan.One(2), Owner: 1}})
	r := New(table)
	r.AddWorker(9, &remembering{seen: map[ID]bool{}})
	m := pushOf(3, 7, 2)
	take := func() {
		if r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
			t.Fatal("a request passes while it is not known where keys are")
		}
		require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
	}
	take()
	r.UseResend()
	take()
	r.Open(table)
	if out := r.Out(); len(out) != 1 || out[0].Server != 1 {
		t.Errorf("a push that came twice goes out as %d messages: %v", len(out), out)
	}
}

// A batch is not quiet while requests may be under way that the router does not
// see.
func TestNothingIsQuietThatIsNotSeen(t *testing.T) {
	table := NewTable(2)
	r := New(table)
	r.Open(table)
	b := Batch{Mover: "a", Number: 1}
	r.SetCarried(false)
	r.Hold(b, []plan.Keys{plan.One(1)})
	r.Hold(b, nil)
	if out := r.Out(); len(out) > 0 {
		t.Errorf("%v is said while messages go past", out)
	}
	r.SetCarried(true)
	if out := r.Out(); len(out) != 1 || out[0].Quiet == nil || *out[0].Quiet != b {
		t.Errorf("%v is said when none does", out)
	}
}
