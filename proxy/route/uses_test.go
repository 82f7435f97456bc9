package route

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// used is a request of a worker: a push of values, or a pull without any.
type used struct {
	app, head int32
	values    int // of each key; 0: a pull
	keys      []uint64
}

func (u used) message(timestamp int32) *pslite.Message {
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Head, m.Meta.Timestamp, m.Meta.Request = u.app, u.app, u.head, timestamp, true
	m.Meta.Push, m.Meta.Pull = u.values > 0, u.values == 0
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, u.keys), pslite.AppendFloat32(nil, make([]float32, u.values*len(u.keys)))}
	m.Meta.DataSize = int32(total(m.Data))
	return &m
}

// usedRouter is the router of a job of two servers, all of whose keys are at home, after these requests to server 0.
func usedRouter(t *testing.T, all ...used) *Router {
	t.Helper()
	r := New(NewTable(2))
	r.Open(r.Table())
	r.AddWorker(9, &forgetful{})
	for i, u := range all {
		passUsed(t, r, 0, u.message(int32(i)))
	}
	return r
}

// passUsed has a request pass, and be answered.
func passUsed(t *testing.T, r *Router, server int32, m *pslite.Message) {
	t.Helper()
	if !r.Request(9, server, &m.Meta, m.Keys(), pslite.DMLC) {
		t.Fatalf("request %d for %v to server %d does not pass", m.Meta.Timestamp, m.Keys().AppendTo(nil), server)
	}
	m.Meta.Request = false
	r.Answer(server, 9, &m.Meta)
	r.Out()
}

// A key is pushed and pulled under the commands that it is used under; where these are not known, or there are several,
// it is left alone.
func TestKeysAreAskedForUnderTheirCommands(t *testing.T) {
	tables := []used{{0, 5, 1, []uint64{1}}, {0, 6, 1, []uint64{2}}}
	for _, c := range []struct {
		name       string
		seen       []used
		push, pull int32 // commands for key 2; 0: it stays
	}{
		{"one command", []used{{0, 3, 1, []uint64{1}}}, 3, 3},
		{"one for pushes, one for pulls", []used{{0, 3, 1, []uint64{1}}, {0, 4, 0, []uint64{1}}}, 3, 4},
		{"only pulled", []used{{0, 4, 0, []uint64{1}}}, 4, 4},
		{"two tables", tables, 6, 6},
		{"two tables, one of which is pulled", append(tables, used{0, 6, 0, []uint64{2}}), 6, 6},
		{"two tables, the other one of which is pulled", append(tables, used{0, 5, 0, []uint64{1}}), 0, 0},
		{"two tables, only pulled", []used{{0, 5, 0, []uint64{1}}, {0, 6, 0, []uint64{2}}}, 6, 6},
		{"two tables, not used yet", []used{{0, 5, 1, []uint64{1}}, {0, 6, 1, []uint64{3}}}, 0, 0},
		{"in two tables", append(tables, used{0, 5, 1, []uint64{2}}), 0, 0},
		{"pulled from two tables", []used{{0, 5, 1, []uint64{2}}, {0, 5, 0, []uint64{2}}, {0, 6, 0, []uint64{2}}}, 0, 0},
	} {
		for _, push := range []bool{true, false} {
			r := usedRouter(t, c.seen...)
			op := &Op{Server: 0, Keys: []uint64{2}, Push: push, Values: [][]byte{make([]byte, 4)}}
			r.Start(9, op)
			out, want := r.Out(), map[bool]int32{true: c.push, false: c.pull}[push]
			var stay *StayError
			switch {
			case want == 0 && (len(out) != 1 || out[0].Op != op || !errors.As(op.Err, &stay) || !slices.Equal(stay.Keys, op.Keys)):
				t.Errorf("%s, push %v: it does not stay: %v, %d outputs", c.name, push, op.Err, len(out))
			case want != 0 && (len(out) != 1 || decoded(t, out[0].Frames, pslite.DMLC).Meta.Head != want):
				t.Errorf("%s, push %v: want one message under command %d, got %d, %v", c.name, push, want, len(out), op.Err)
			}
		}
	}
}

// What workers of other hosts do counts as much as what those of this one do.
func TestUsesOfOtherHosts(t *testing.T) {
	mine := usedRouter(t, used{0, 5, 1, []uint64{1, 2}}, used{0, 5, 0, []uint64{1, 2}})
	theirs := usedRouter(t, used{0, 6, 3, []uint64{3}}, used{0, 6, 0, []uint64{3}})
	keys := []plan.Keys{{First: 1, Last: 3}}
	all := MergeUses(mine.Uses(keys), theirs.Uses(keys))
	op := &Op{Server: 0, Keys: []uint64{1, 2, 3}, Uses: all}
	mine.Start(9, op)
	got := map[int32][]uint64{}
	for _, o := range mine.Out() {
		m := decoded(t, o.Frames, pslite.DMLC)
		got[m.Meta.Head] = m.Keys().AppendTo(nil)
	}
	if len(got) != 2 || !slices.Equal(got[5], []uint64{1, 2}) || !slices.Equal(got[6], []uint64{3}) {
		t.Errorf("asked for %v, by command", got)
	}
	narrow := MergeUses(mine.Uses(nil), usedRouter(t, used{0, 5, 2, []uint64{7}}).Uses(nil))
	if w := narrow[0].Width; len(narrow) != 2 || w != Varies {
		t.Errorf("pushes of one value and of two: width %d of %d uses", w, len(narrow))
	}
	for name, c := range map[string]struct {
		server int32
		other  used
		want   error
	}{
		"the same":             {0, used{0, 5, 1, []uint64{1}}, nil},
		"another app":          {0, used{1, 5, 1, []uint64{9}}, ErrApps},
		"another server asked": {1, used{0, 5, 1, []uint64{9}}, ErrSlicer},
	} {
		r := usedRouter(t)
		passUsed(t, r, c.server, c.other.message(1))
		if err := Fits(MergeUses(mine.Uses(keys), r.Uses(keys))); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// After a restart nothing is known but which commands there were: with several of them each key may have had any.
func TestUsesAfterARestart(t *testing.T) {
	for heads, stays := range map[int32]bool{1: false, 2: true} {
		before, after := usedRouter(t), usedRouter(t)
		for head := range heads {
			passUsed(t, before, 0, used{0, head, 1, []uint64{uint64(head)}}.message(head))
		}
		after.TakeUses(before.KnownUses())
		passUsed(t, after, 0, used{0, 0, 1, []uint64{7}}.message(100))
		op := &Op{Server: 0, Keys: []uint64{7}}
		after.Start(9, op)
		if got := errors.Is(op.Err, ErrCommands); got != stays {
			t.Errorf("%d commands were known: %v", heads, op.Err)
		}
	}
}

// An answer is cut by the lengths that it has, and an op has the lengths that the workers' pushes have.
func TestOpsHaveLengthsAsTheWorkersHave(t *testing.T) {
	r := usedRouter(t)
	m := used{0, 0, 3, []uint64{4}}.message(1)
	m.Data = append(m.Data, []byte{3, 0, 0, 0})
	m.Meta.DataTypes = append(m.Meta.DataTypes, pslite.Int32)
	passUsed(t, r, 0, m)
	r.Start(9, &Op{Server: 1, Push: true, Keys: []uint64{4, 5}, Values: [][]byte{make([]byte, 12), make([]byte, 4)}})
	out := r.Out()
	if len(out) != 2 {
		t.Fatalf("%d messages, want 2", len(out))
	}
	for i, want := range []int32{3, 1} {
		if m := decoded(t, out[i].Frames, pslite.DMLC); m.Lens().Len() != 1 || m.Lens().At(0) != want {
			t.Errorf("message %d has lengths %v, want %d", i, m.Lens(), want)
		}
	}
}

// Whatever is covered stays covered, in bounded memory.
func TestCover(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []plan.Keys
	var in []uint64
	for range 20_000 {
		k := plan.One(rng.Uint64() >> rng.IntN(64))
		if rng.IntN(8) == 0 {
			k.Last += min(rng.Uint64N(1000), math.MaxUint64-k.Last)
		}
		all = cover(all, k)
		in = append(in, k.First, k.Last)
	}
	all = cover(all, plan.One(math.MaxUint64))
	if len(all) > mostSpans || !slices.IsSortedFunc(all, func(a, b plan.Keys) int { return map[bool]int{true: -1, false: 1}[a.Last < b.First] }) {
		t.Errorf("%d ranges, or not in order", len(all))
	}
	for _, key := range in {
		if !covers(all, plan.One(key)) || len(within(all, plan.One(key))) != 1 {
			t.Fatalf("key %d is not covered", key)
		}
	}
	few := cover(cover(cover(nil, plan.One(3)), plan.One(5)), plan.One(4))
	if !slices.Equal(few, []plan.Keys{{First: 3, Last: 5}}) || covers(few, plan.Keys{First: 5, Last: 6}) {
		t.Errorf("3, 5 and 4 are %v", few)
	}
}

// An app that comes when keys of another one have moved finds its keys where they were from the start.
func TestAppsThatComeLater(t *testing.T) {
	placed := NewTable(2)
	placed.Set([]plan.Range{{Keys: plan.One(8), Owner: 1}, {Keys: plan.One(9), Owner: 1}})
	r := New(placed)
	r.Open(r.Table())
	r.AddWorker(9, &forgetful{})
	r.MoveApp(0)
	for _, move := range []struct {
		key uint64
		to  int32
	}{{1, 1}, {9, 0}} {
		b := Batch{"m", move.key}
		r.Hold(b, []plan.Keys{plan.One(move.key)})
		r.Release(b, move.to)
	}
	r.Out()
	owners := map[int32]map[uint64]int32{0: {1: 1, 2: 0, 8: 1, 9: 0}, 1: {1: 0, 2: 0, 8: 1, 9: 1}}
	for app, owners := range owners {
		for key, owner := range owners {
			m := used{app, 0, 1, []uint64{key}}.message(int32(key))
			if passes := r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC); passes {
				if owner != 0 {
					t.Errorf("app %d, key %d passes, its value is with server %d", app, key, owner)
				}
				continue
			}
			require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
			if out := r.Out(); len(out) != 1 || out[0].Server != owner {
				t.Errorf("app %d, key %d: %+v, want one message to server %d", app, key, out, owner)
			}
		}
	}
	if _, err := r.Mover(); !errors.Is(err, ErrApps) {
		t.Errorf("keys of two apps may move: %v", err)
	}
}
