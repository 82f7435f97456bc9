package values

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// paired are two ends, a worker and its links, after so many pulls and pushes that its
// next pull is asked by rows.
func paired(t *testing.T, r Rule) (*ends, party, request) {
	t.Helper()
	e := newEnds(t, r)
	w := e.party(t, "ps9")
	q := request{keys: []uint64{3, 5}}
	w.pairs(t, &q)
	return e, w, q
}

// pairs has the worker pull and push until it is asked by rows.
func (p party) pairs(t *testing.T, q *request) {
	for range trusted {
		p.pull(t, *q, ascending(2*100))
		q.timestamp++
		p.push(t, *q, ascending(2*100))
		q.timestamp++
	}
}

// ascending are the numbers from 1 on.
func ascending(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i + 1)
	}
	return v
}

// Two workers of a host that pull the same keys under the same number at once get
// whole rows: whose answer is whose cannot be told. Those of which one was answered
// before are told apart.
func TestPullsAlike(t *testing.T) {
	e, one, q := paired(t, Rule{Activations: 0.9})
	defer one.close()
	other := e.party(t, "ps11")
	defer other.close()
	p := request{keys: q.keys}
	other.pairs(t, &p)
	has := ascending(200)
	want, _ := thresholded(has, 100, 0.9)
	one.ask(t, q)
	other.ask(t, q)
	for _, w := range []party{other, one} {
		if got := w.answer(t, q, has); !sameBits(got, has) {
			t.Errorf("an answer that could be either's came as %v", got)
		}
	}
	for _, c := range []*Codec{e.worker, e.server} {
		if n := c.Counts().Reasons[ReasonAlike]; n != 1 {
			t.Errorf("counted %d pulls alike", n)
		}
	}
	for _, w := range []party{one, other} { // each pushes, pulls again, and pushes
		p := request{timestamp: q.timestamp + 1, keys: q.keys}
		if got := w.push(t, p, has); !sameBits(got, has) {
			t.Errorf("a gradient without a mask came as %v", got)
		}
		p.timestamp++
		if got := w.pull(t, p, has); !sameBits(got, want) {
			t.Errorf("an answer that is one worker's came as %v", got)
		}
		p.timestamp++
		if got := w.push(t, p, has); !sameBits(got, want) {
			t.Errorf("its gradient came as %v", got)
		}
	}
}

// An answer that the server repeats comes as it did, and its mask is for no second
// push.
func TestRepeatedAnswerOfRows(t *testing.T) {
	_, w, q := paired(t, Rule{Activations: 0.9})
	defer w.close()
	has := ascending(200)
	want, _ := thresholded(has, 100, 0.9)
	if got := w.pull(t, q, has); !sameBits(got, want) {
		t.Fatalf("got %v", got)
	}
	p := request{timestamp: q.timestamp + 1, keys: q.keys}
	if got := w.push(t, p, has); !sameBits(got, want) {
		t.Errorf("the gradient came as %v", got)
	}
	if got := w.answer(t, q, has); !sameBits(got, want) {
		t.Errorf("repeated it came as %v", got)
	}
	p.timestamp++
	if got := w.push(t, p, has); !sameBits(got, has) {
		t.Errorf("a push without a pull came as %v", got)
	}
}

// What is remembered of pulls and masks is within the bound, and given back; beyond
// it pushes go whole.
func TestMasksAreBounded(t *testing.T) {
	e := newEnds(t, Rule{Activations: 0.9})
	e.worker.budget.limit = 60_000
	w := e.party(t, "ps9")
	rng := rand.New(rand.NewPCG(1, 1))
	for step := range int32(60) {
		q := request{timestamp: 2 * step, keys: randomKeys(rng, 1000, 1<<30)}
		w.pull(t, q, normal(rng, 8*1000))
		if step < 20 || step%2 == 0 {
			q.timestamp++
			w.push(t, q, normal(rng, 8*1000))
		}
		if n := e.worker.Counts().StateBytes; n > 60_000 {
			t.Fatalf("step %d: %d bytes", step, n)
		}
	}
	if n := e.worker.Counts().Reasons; n[ReasonMemory] == 0 || e.worker.Counts().Forms[0].Form != "masked" {
		t.Errorf("%v", n)
	}
	w.close()
	e.worker.mu.Lock()
	for _, st := range e.worker.streams {
		st.restart(ReasonAbandoned)
	}
	e.worker.mu.Unlock()
	if n := e.worker.Counts().StateBytes; n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// A worker whose pulls are not followed by pushes, or that pulls far more than it ever
// pushed, is left alone.
func TestPullsThatDoNotPair(t *testing.T) {
	e, w, q := paired(t, Rule{Activations: 0.9})
	defer w.close()
	large := request{timestamp: q.timestamp, keys: []uint64{10, 11, 12, 13, 14}}
	if has := ascending(500); !sameBits(w.pull(t, large, has), has) {
		t.Error("a pull of more than twice the keys came by rows")
	}
	q.timestamp++
	w.push(t, large.at(q.timestamp), ascending(500))
	whole := 0
	for range 3 * mostPulls {
		q.timestamp++
		for i := range q.keys {
			q.keys[i] += 10
		}
		if has := ascending(200); sameBits(w.pull(t, q, has), has) {
			whole++
		}
	}
	if whole < 3*mostPulls-mostAhead || whole == 3*mostPulls {
		t.Errorf("%d of %d pulls without a push came whole", whole, 3*mostPulls)
	}
	if n := e.worker.Counts().Reasons[ReasonUnpaired]; int(n) != whole+1+trusted {
		t.Errorf("counted %d, want %d", n, whole+1+trusted)
	}
}

func (q request) at(timestamp int32) request {
	q.timestamp = timestamp
	return q
}

// The proxies' end, or a new link, loses masks and pairs; pushes go whole after it.
func TestMasksAreOfALink(t *testing.T) {
	for _, anew := range []func(e *ends){func(*ends) {}, func(e *ends) { e.worker = newEnds(t, e.worker.Rules()...).worker }} {
		e, w, q := paired(t, Rule{Activations: 0.9})
		has := ascending(200)
		w.pull(t, q, has)
		w.close()
		anew(e)
		w = e.party(t, "ps9")
		q.timestamp++
		if got := w.push(t, q, has); !sameBits(got, has) {
			t.Errorf("a push after the link's end came as %v", got)
		}
		if n := e.worker.Counts().Reasons[ReasonUnmasked]; n == 0 {
			t.Error("it was not counted")
		}
		w.close()
	}
}

// Rows of zeros and rows that are not finite come whole, and so do their gradients.
func TestOpenRowsComeWhole(t *testing.T) {
	e, w, q := paired(t, Rule{Activations: 0.9, Row: 50})
	defer w.close()
	has := ascending(200)
	clear(has[50:100])
	has[199] = float32(math.Inf(1))
	want, mask := thresholded(has, 50, 0.9)
	copy(want[150:], has[150:])
	for i := range 50 {
		mask[150+i] = true
	}
	if got := w.pull(t, q, has); !sameBits(got, want) {
		t.Errorf("%v came as %v", has, got)
	}
	q.timestamp++
	if got, gradient := w.push(t, q, ascending(200)), ascending(200); !sameBits(got, masked(gradient, mask)) {
		t.Errorf("the gradient came as %v", got)
	}
	if e.server.Counts().Reasons[ReasonNotFinite] != 1 {
		t.Errorf("%v", e.server.Counts().Reasons)
	}
}

// With a wire of 16 bits what goes is rounded both ways, with quantize what is pushed;
// rows that do not divide a key's values, and proxies that do not know of rows, have
// all come whole.
func TestActivationsCombine(t *testing.T) {
	has := ascending(200)
	want, _ := thresholded(has, 100, 0.9)
	for _, c := range []struct {
		rule  Rule
		exact [2]bool
	}{{Rule{Activations: 0.9, Wire: "bf16"}, [2]bool{true, true}}, {Rule{Activations: 0.9, Quantize: 4, QuantizeBucket: 64}, [2]bool{true, false}}} {
		_, w, q := paired(t, c.rule)
		got := [2][]float32{w.pull(t, q, has)}
		q.timestamp++
		got[1] = w.push(t, q, has)
		for side, values := range got {
			for i, v := range values {
				if (v == 0) != (want[i] == 0) || c.exact[side] && v != want[i] {
					t.Errorf("%+v, side %d: value %d came as %v, want %v", c.rule, side, i, v, want[i])
				}
			}
		}
		w.close()
	}
	e, w, q := paired(t, Rule{Activations: 0.9, Row: 30})
	if got := w.pull(t, q, has); !sameBits(got, has) || e.server.Counts().Reasons[ReasonShape] == 0 {
		t.Errorf("rows of 30 of 100 values: %v, %v", got, e.server.Counts().Reasons)
	}
	w.close()
	e = newEnds(t, Rule{Activations: 0.9})
	l := relay.Link{ID: 1, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: memory}
	offer := fmt.Sprintf(`{"formats":%d,"compact":%s,"wire":true}`, formats, compact.New(compact.DefaultLimits).Offer())
	s, r, err := e.worker.Open(l, []byte(offer))
	require.NoError(t, err)
	defer s.Close()
	defer r.Close()
	head, _, _ := s.Encode(nil, message((request{pull: true, keys: q.keys}).frames()))
	if mode := head[len(head)-1]; mode != modeCompact || e.worker.Counts().Reasons[ReasonPeer] != 1 {
		t.Errorf("an older proxy is sent mode %d, %v", mode, e.worker.Counts().Reasons)
	}
}

// Marks are remembered of so many at least, of no more than twice as many, and
// within the bound of memory.
func TestMarksOfKeysAreBounded(t *testing.T) {
	b := &budget{limit: 1 << 30}
	var r marks
	for key := range uint64(5 * mostMarks / 2) {
		r.note(key, key%2 == 0, b)
	}
	if n := len(r.now) + len(r.before); n > 2*mostMarks || int(b.used.Load()) != n*markBytes {
		t.Errorf("%d keys take %d bytes", n, b.used.Load())
	}
	for key := uint64(5*mostMarks/2 - mostMarks); key < 5*mostMarks/2; key += 1001 {
		if pushed, known := r.note(key, key%2 != 0, b); !known || pushed != (key%2 == 0) {
			t.Fatalf("key %d was pushed first: %v, %v", key, pushed, known)
		}
	}
	if pushed, _ := r.note(2, false, b); pushed {
		t.Error("the oldest key is not forgotten")
	}
	r.clear(b)
	if b.used.Load() != 0 {
		t.Errorf("%d bytes are left", b.used.Load())
	}
	b.limit = 10 * markBytes
	for key := range uint64(20) {
		if _, known := r.note(key, true, b); known != (key < 10) {
			t.Errorf("beyond the bound key %d is known: %v", key, known)
		}
	}
}
