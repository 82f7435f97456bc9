package route

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// following notes what a router tells, and how many messages it had sent by then.
type following struct {
	r     *Router
	busy  bool
	told  [][]plan.Keys
	owner []int32 // of key 1, each time
	sent  []int
}

func (f *following) Follow(keys []plan.Keys) {
	f.told = append(f.told, keys)
	f.owner = append(f.owner, f.r.Table().Owner(1))
	f.sent = append(f.sent, len(f.r.out))
}

func (f *following) Busy() bool { return f.busy }

func (f *following) Waits([]plan.Keys) bool { return false }

// Values that follow keys get their owners before any request that waited for them
// goes there, and only when they have moved.
func TestFollowersComeFirst(t *testing.T) {
	table := NewTable(2)
	r := New(table)
	f := &following{r: r}
	r.SetFollower(f)
	r.AddWorker(9, &forgetful{})
	r.Open(table)
	b, keys := Batch{Mover: "a", Number: 1}, []plan.Keys{plan.One(1)}
	r.Hold(b, keys)
	m := pushOf(0, 7, 1)
	if r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		t.Fatal("a push of a held key passes")
	}
	require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
	r.Out()
	r.Release(b, 1)
	r.Hold(b, keys)
	r.Release(b, Unchanged)
	if len(f.told) != 2 || f.told[0] != nil || !slices.Equal(f.told[1], keys) || !slices.Equal(f.owner, []int32{0, 1}) || !slices.Equal(f.sent, []int{0, 0}) {
		t.Errorf("told %v, when key 1 was server %v's and %v messages had gone", f.told, f.owner, f.sent)
	}
	if out := r.Out(); len(out) == 0 || out[0].Server != 1 {
		t.Errorf("the push that waited goes as %v", out)
	}
}

// No batch becomes quiet while something is under way that the router does not see.
// One that did keeps followers from sending, also when it is asked for again.
func TestNothingIsQuietWhileFollowersSend(t *testing.T) {
	r := New(NewTable(2))
	f := &following{r: r, busy: true}
	r.SetFollower(f)
	if r.Still() {
		t.Error("keys are still before it is known where they are")
	}
	r.Open(NewTable(2))
	b := Batch{Mover: "a", Number: 1}
	r.Hold(b, []plan.Keys{plan.One(1)})
	if out := r.Out(); len(out) > 0 || !r.Still() {
		t.Errorf("%v is said, still %v, while something is under way", out, r.Still())
	}
	f.busy = false
	r.Hold(b, nil)
	if out := r.Out(); len(out) != 1 || out[0].Quiet == nil || r.Still() {
		t.Errorf("%v is said, still %v, when nothing is under way", out, r.Still())
	}
	f.busy = true
	if r.Hold(b, nil); r.Still() {
		t.Error("keys that may be on their way count as still when it is asked again whether they may go")
	}
	if r.Release(b, Unchanged); !r.Still() {
		t.Error("no key moves, and yet they do not count as still")
	}
}
