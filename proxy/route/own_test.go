package route

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// What the router asks for itself is in the dialect of the worker in whose name
// it does so, even where no request of the worker was ever split: a message of a
// newer generation among a connection's first ones would make those who follow it
// take the worker's own for something else, as pulls of 2018, which say nothing
// but that they are no push.
func TestOwnMessagesSpeakTheWorkersDialect(t *testing.T) {
	worker := pslite.WorkerID(0)
	for _, d := range []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.DMLC2017} {
		for name, push := range map[string]bool{"after a push": true, "after a pull": false} {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				r := New(NewTable(2))
				r.Open(NewTable(2))
				r.AddWorker(worker, &forgetful{})
				var follower pslite.Detector
				like := follow(t, &follower, ask(d, 3, push, !push, false, []uint64{5, 6}))
				if !r.Request(worker, 0, &like.Meta, like.Keys(), d) {
					t.Fatal("a request with no displaced key does not pass")
				}
				ops := []*Op{{Server: 1, Keys: []uint64{7}}, {Server: 1, Keys: []uint64{7}, Push: true, Values: [][]byte{{0, 0, 128, 63}}}}
				for _, op := range ops {
					r.Start(worker, op)
				}
				out := r.Out()
				if len(out) != len(ops) {
					t.Fatalf("%d messages, want %d", len(out), len(ops))
				}
				for i, o := range out {
					var alone pslite.Meta
					if is, err := pslite.Detect(o.Frames[0], &alone); is != d || err != nil {
						t.Errorf("message %d is in %s, the worker speaks %s: %v", i, is, d, err)
					}
					m := follow(t, &follower, o.Frames)
					if m.Meta.Push != ops[i].Push || m.Meta.Pull == ops[i].Push || !m.Meta.Request || m.Meta.AppID != like.Meta.AppID || !slices.Equal(m.Keys().AppendTo(nil), ops[i].Keys) {
						t.Errorf("message %d is read as %+v", i, m.Meta)
					}
				}
				if again := follow(t, &follower, ask(d, 4, false, true, false, []uint64{5})); !again.Meta.Pull || again.Meta.Push {
					t.Errorf("the worker's next pull is read as %+v", again.Meta)
				}
			})
		}
	}
}

// follow reads a message as an observer of the whole connection does.
func follow(t *testing.T, d *pslite.Detector, frames [][]byte) *pslite.Message {
	t.Helper()
	m := new(pslite.Message)
	if _, err := m.Decode(d, frames); err != nil {
		t.Fatal(err)
	}
	return m
}

// Keys are asked for together only where the workers do so, and where their pushes have shown that all
// have as many values: an answer without lengths does not say whose each value is.
// A worker that has only pulled, as after a proxy was replaced, has shown nothing.
func TestKeysOfOtherLengthsAreAskedForAlone(t *testing.T) {
	worker := pslite.WorkerID(0)
	push := func(values int) *pslite.Message {
		m := pushOf(0, 7, 5)
		m.Data[1] = pslite.AppendFloat32(nil, make([]float32, values))
		m.Meta.DataSize = int32(total(m.Data))
		return m
	}
	three := func(values int) *pslite.Message {
		m := push(3 * values)
		m.Data[0] = pslite.AppendKeys(nil, []uint64{7, 8, 9})
		m.Meta.DataSize = int32(total(m.Data))
		return m
	}
	pull := pushOf(0, 7, 5)
	pull.Meta.Push, pull.Meta.Pull, pull.Data[1] = false, true, nil
	withLens := push(2)
	withLens.Meta.DataTypes = append(withLens.Meta.DataTypes, pslite.Int32)
	for _, c := range []struct {
		name    string
		seen    []*pslite.Message
		letters int
	}{
		{"only a pull", []*pslite.Message{pull}, 3},
		{"a push with lengths", []*pslite.Message{withLens}, 3},
		{"pushes of one length, a key in each", []*pslite.Message{push(2), push(2)}, 3},
		{"pushes of one length", []*pslite.Message{push(2), three(2)}, 1},
		{"pushes of two lengths", []*pslite.Message{push(2), three(3)}, 3},
	} {
		r := New(NewTable(2))
		r.Open(NewTable(2))
		r.AddWorker(worker, &forgetful{})
		for i, m := range c.seen {
			m.Meta.Timestamp = int32(i)
			if !r.Request(worker, 0, &m.Meta, m.Keys(), pslite.DMLC) {
				t.Fatalf("%s: a request with no displaced key does not pass", c.name)
			}
		}
		r.Start(worker, &Op{Server: 1, Keys: []uint64{7, 8, 9}})
		if n := len(r.Out()); n != c.letters {
			t.Errorf("%s: three keys are asked for in %d messages, want %d", c.name, n, c.letters)
		}
	}
}
