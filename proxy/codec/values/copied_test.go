package values

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A part that does not come, comes twice or was changed is noticed with the next
// one at the latest.
func TestDisagreementIsNoticed(t *testing.T) {
	heads := func() [][]byte {
		e := newEnds(t, Rule{PullThreshold: 0.9})
		w := e.dial(t, e.server, e.worker, "ps8")
		defer w.close()
		p := newParameters(3)
		var all [][]byte
		for step := range 4 {
			p.step()
			head, _, ok := w.sender.Encode(nil, message(p.answer(int32(step), []uint64{1, 2, 7, 9}).frames()))
			if !ok {
				t.Fatal("not encoded")
			}
			all = append(all, head)
		}
		return all
	}()
	section := func(head []byte) []byte {
		size := int(head[len(head)-5]) | int(head[len(head)-4])<<8 | int(head[len(head)-3])<<16
		return bytes.Clone(head[len(head)-5-size : len(head)-5])
	}
	run := func(sections ...[]byte) error {
		r := bareReceiver(t, newEnds(t).worker)
		r.keys = pslite.AppendKeys(nil, []uint64{1, 2, 7, 9})
		for _, s := range sections {
			if _, err := r.values(s); err != nil {
				return err
			}
		}
		return nil
	}
	a, b, c, d := section(heads[0]), section(heads[1]), section(heads[2]), section(heads[3])
	require.NoError(t, run(a, b, c, d))
	changed := bytes.Clone(b)
	changed[len(changed)-10] ^= 1
	for name, sections := range map[string][][]byte{"lost": {a, c}, "repeated": {a, b, b}, "in another order": {a, c, b}, "the first lost": {b}, "changed": {a, changed}} {
		if err := run(sections...); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing lossy is done within a host, to values of unknown type, or by a proxy
// whose other end is older.
func TestPullsThatPass(t *testing.T) {
	rules := []Rule{{PullThreshold: 0.5}, {PullQuantize: 4}, {Wire: "bf16"}}
	for _, rule := range rules {
		for name, c := range map[string]struct {
			raw  bool
			pass func(e *ends, w *way)
			want Reason
		}{
			"unknown type":  {true, func(*ends, *way) {}, ReasonType},
			"an older peer": {false, func(_ *ends, w *way) { s := w.sender.(*Sender); s.theirs = offer{} }, ReasonPeer},
			"the same host": {false, func(_ *ends, w *way) { w.sender.(*Sender).sameHost = true }, ""},
		} {
			e := newEnds(t, rule)
			w := e.dial(t, e.server, e.worker, "ps8")
			c.pass(e, w)
			rng := rand.New(rand.NewPCG(2, 2))
			for step := range 3 {
				q := request{timestamp: int32(step), pull: true, answer: true, keys: []uint64{3}, vals: make([]float32, 900)}
				for i := range q.vals {
					q.vals[i] = float32(rng.NormFloat64())
				}
				if c.raw {
					q.raw, q.kind = pslite.AppendFloat32(nil, q.vals), pslite.Char
				}
				if got := floats(w.carry(t, q.frames())[2]); !slices.Equal(got, q.vals) {
					t.Errorf("%s: %+v changes values", name, rule)
				}
			}
			if n := e.server.Counts().Reasons; c.want != "" && n[c.want] != 3 || c.want == "" && len(n) > 0 {
				t.Errorf("%s, %+v: counted %v", name, rule, n)
			}
			w.close()
		}
	}
}

// A long answer for which there was no memory passes unseen, but for its beginning:
// the next one goes whole.
func TestAnswersThatPassUnseen(t *testing.T) {
	e := newEnds(t, Rule{PullThreshold: 0.9})
	w := e.dial(t, e.server, e.worker, "ps8")
	defer w.close()
	q := request{pull: true, answer: true, keys: []uint64{5}, vals: make([]float32, 3000)}
	next := func(timestamp int32) [][]byte {
		for i := range q.vals {
			q.vals[i] += float32(1 + i%7)
		}
		q.timestamp = timestamp
		return q.frames()
	}
	held := func(frames [][]byte) {
		beginning := &relay.Message{Frames: frames[:2], Rest: true, Next: uint64(len(frames[2]))}
		if !w.sender.(relay.Holder).Hold(beginning) {
			t.Error("the answer is not wanted whole")
		}
	}
	for step := range int32(5) {
		frames := next(step)
		held(frames)
		if got := floats(w.carry(t, frames)[2]); slices.Equal(got, q.vals) != (step == 0) {
			t.Fatalf("step %d: the first answer is not exact, or a later one is", step)
		}
	}
	held(next(5)) // and passes
	if got := floats(w.carry(t, next(6))[2]); !slices.Equal(got, q.vals) {
		t.Error("the answer after one that passed is of differences from what the worker has not")
	}
	held(next(route.FirstExact + 1)) // a move's
	if n := e.server.Counts().Reasons[ReasonMoved]; n != 1 {
		t.Errorf("%d keys were counted as moved", n)
	}
}

// Two apps' values for the same keys have copies of their own.
func TestAppsHaveTheirOwnCopies(t *testing.T) {
	e := newEnds(t, Rule{PullThreshold: 0.9})
	w := e.dial(t, e.server, e.worker, "ps8")
	defer w.close()
	for step := range 20 {
		app := int32(step % 2)
		vals := make([]float32, 1000)
		for i := range vals {
			vals[i] = float32(app*1000) + float32(step)*0.001
		}
		q := request{timestamp: int32(step), pull: true, answer: true, keys: []uint64{3}, vals: vals}
		frames := q.frames()
		var m pslite.Message
		require.Value(m.Decode(new(pslite.Detector), frames))(t)
		m.Meta.AppID, m.Meta.Head = app, int32(step)
		frames[0] = m.Meta.Append(nil, pslite.DMLC)
		for i, v := range floats(w.carry(t, frames)[2]) {
			if math.Abs(float64(v-vals[i])) > 0.1 {
				t.Fatalf("step %d: app %d has value %d as %v, want %v", step, app, i, v, vals[i])
			}
		}
	}
	if n := len(w.receiver.(*Receiver).copied.tables); n != 2 {
		t.Errorf("%d tables for two apps", n)
	}
}

func TestRulesOfPulls(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{PullThreshold: 1}, "pull-threshold 1"}, {Rule{PullThreshold: math.NaN()}, "pull-threshold"}, {Rule{PullQuantize: 1}, "2 to 8 bits"}, {Rule{PullQuantize: 9}, "2 to 8 bits"},
		{Rule{PullThreshold: 0.5, Unchanged: true}, "exclude"}, {Rule{PullQuantize: 4, Slim: &Slim{Alpha: 0.5}}, "exclude"},
		{Rule{Wire: "fp8"}, "want bf16 or fp16"}, {Rule{Wire: "bf16", Slim: &Slim{Alpha: 0.5}}, "exclude"},
	} {
		if err := c.rule.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.rule, err)
		}
	}
	for _, r := range []Rule{{PullThreshold: 0.95, PullQuantize: 2, Wire: "fp16", Threshold: 0.99, Quantize: 8}, {Wire: "bf16", Unchanged: true}} {
		if err := r.Check(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzCopied: whatever parts come, there is an error or values within the room, and
// no more is remembered than was agreed.
func FuzzCopied(f *testing.F) {
	for _, rule := range []Rule{{PullThreshold: 0.5}, {PullQuantize: 4}, {PullThreshold: 0.5, Wire: "bf16"}} {
		e := newEnds(f, rule)
		w := e.dial(f, e.server, e.worker, "ps8")
		s := w.sender.(*Sender)
		p := newParameters(1)
		var parts [3][]byte
		for i := range parts {
			q := p.answer(0, []uint64{1, 2, 3, 4})
			vals := pslite.AppendFloat32(nil, q.vals)
			one := piece{span: &span{rule: &rule}, keys: 4, to: len(vals), lens: pslite.AppendLens(nil, q.lens), unit: 4, kind: element.Float32, known: true}
			part, _, _, ok := s.appendCopied(nil, &one, &Rule{PullThreshold: 0.5, QuantizeBucket: 64}, pslite.AppendKeys(nil, q.keys), vals)
			if !ok {
				f.Fatal("not encoded")
			}
			parts[i] = part[1:]
			p.step()
		}
		f.Add(parts[0], parts[1], parts[2])
		w.close()
	}
	keys := pslite.Keys(pslite.AppendKeys(nil, []uint64{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		c := newCopied(10_000)
		for _, part := range [][]byte{first, second, third} {
			out := make([]byte, 3000)
			n, rest, err := c.read(part, keys, out)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				return
			}
			if n > len(out) || len(rest) > len(part) || c.left < 0 || c.left > c.limit {
				t.Fatalf("%d of %d bytes, %d follow, %d left", n, len(out), len(rest), c.left)
			}
		}
	})
}
