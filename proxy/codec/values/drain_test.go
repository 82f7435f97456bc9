package values

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// whole makes pushes of the same keys each: a few of one value, and a long one.
func whole(r *rand.Rand, step int) request {
	q := request{timestamp: int32(step), push: true, lens: []int32{700}, keys: []uint64{7}, vals: normal(r, 700)}
	for k := range 300 {
		q.keys, q.lens = append(q.keys, uint64(100+k)), append(q.lens, 1)
		q.vals = append(q.vals, float32(r.NormFloat64()))
	}
	for i := range q.vals {
		q.vals[i] = float32(int(q.vals[i] * 64))
	}
	return q
}

// A threshold ends: within the pushes that were named all that waited has gone
// along, more and more with each, and what is pushed after that goes whole. So it
// is by a rule with an end from the start, by one that drains, set by flags or by
// the planner, and across proxies that were killed.
func TestThresholdEnds(t *testing.T) {
	const last = 60
	for _, c := range []struct {
		name   string
		rule   Rule
		then   *Rule // from push 30 on
		killed bool
	}{
		{name: "until", rule: Rule{Unpulled: true, Threshold: 0.99, Until: last}},
		{name: "until, killed", rule: Rule{Unpulled: true, Threshold: 0.99, Until: last}, killed: true},
		{name: "drain", rule: Rule{Unpulled: true, Threshold: 0.99}, then: &Rule{End: last - 30}},
		{name: "end with a threshold", rule: Rule{Unpulled: true, Threshold: 0.99}, then: &Rule{Unpulled: true, Threshold: 0.99, End: last - 30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t)
			folder := filepath.Join(t.TempDir(), "state")
			var codec *Codec
			var w *way
			begin := func() {
				codec = require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{c.rule}, Folder: folder}))(t)
				w = e.dial(t, codec, e.server, "ps9")
			}
			begin()
			r := rand.New(rand.NewPCG(1, 9))
			pushed, got := sums{}, sums{}
			sent := func() (n uint64) {
				for _, f := range codec.Counts().Forms {
					n += f.Sent
				}
				return n
			}
			var shares []uint64
			for step := range last + 10 {
				if step == 30 && c.then != nil {
					require.NoError(t, codec.SetPlanned([]Rule{*c.then}))
				}
				if c.killed && step%20 == 19 {
					for _, st := range codec.streams {
						if err := st.file.Close(); err != nil { // as a kill does
							t.Fatal(err)
						}
					}
					begin()
				}
				before := sent()
				q := whole(r, step)
				pushed.add(q.keys, q.vals, q.lens)
				got.add(q.keys, floats(w.carry(t, q.frames())[2]), q.lens)
				shares = append(shares, sent()-before)
				if waits := codec.StillWaiting(); (waits > 0) != (step < last) {
					t.Fatalf("%d values wait after push %d", waits, step+1)
				}
			}
			if shares[25] > 40 || shares[last-5] < 3*shares[25] || shares[last-1] <= shares[last-5] {
				t.Errorf("of 1000 values went %v", shares)
			}
			if off := pushed.difference(got) + got.difference(pushed); off != 0 {
				t.Errorf("sums are off by %v", off)
			}
		})
	}
}

// A proxy that ends takes nothing back any more by whatever rule: not the planner's, which
// come before its own, nor one that comes while it ends.
func TestNoRuleSurvivesFlush(t *testing.T) {
	rules := []Rule{{Unpulled: true, Threshold: 0.99}}
	for name, set := range map[string]func(*Codec) error{
		"by flag":       func(c *Codec) error { return c.SetRules(rules) },
		"by planner":    func(c *Codec) error { return c.SetPlanned(rules) },
		"of both kinds": func(c *Codec) error { return errors.Join(c.SetRules(rules), c.SetPlanned(rules)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t)
			require.NoError(t, set(e.worker))
			e.worker.adds = false
			w := e.dial(t, e.worker, e.server, "ps9")
			defer w.close()
			r := rand.New(rand.NewPCG(1, 9))
			pushed, got := sums{}, sums{}
			push := func(step int) {
				q := whole(r, step)
				pushed.add(q.keys, q.vals, q.lens)
				got.add(q.keys, floats(w.carry(t, q.frames())[2]), q.lens)
			}
			for step := range 5 {
				push(step)
			}
			if e.worker.StillWaiting() == 0 {
				t.Fatal("nothing waits")
			}
			require.NoError(t, errors.Join(e.worker.Flush(t.Context()), set(e.worker)))
			push(5)
			if n, left := e.worker.StillWaiting(), pushed.difference(got)+got.difference(pushed); n > 0 || left != 0 {
				t.Errorf("%d values wait, sums are off by %v", n, left)
			}
		})
	}
}

// A proxy without a folder that ends waits while its workers push on, and no longer
// than they do.
func TestDrainsBeforeTheEnd(t *testing.T) {
	for _, silent := range []bool{false, true} {
		e := newEnds(t)
		codec := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.99}}}))(t)
		w := e.dial(t, codec, e.server, "ps9")
		r := rand.New(rand.NewPCG(1, 9))
		for step := range 10 {
			w.carry(t, whole(r, step).frames())
		}
		if codec.StillWaiting() == 0 {
			t.Fatal("nothing waits")
		}
		require.NoError(t, codec.Flush(t.Context()))
		left := make(chan int)
		go func() { left <- codec.AwaitDrained(t.Context()) }()
		if !silent {
			time.Sleep(5 * time.Millisecond) // either order will do
			w.carry(t, whole(r, 10).frames())
		}
		if n := <-left; (n > 0) != silent {
			t.Errorf("silent %v: %d values still waited", silent, n)
		}
	}
}

// The push with which the last goes that waited takes the same bytes when it is
// repeated, though no rule holds any more and nothing waits.
func TestTheLastPushIsRepeated(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(1, 9))
	w.carry(t, whole(r, 0).frames())
	require.NoError(t, e.worker.SetRules(nil))
	last := request{timestamp: 1, push: true, keys: []uint64{7}, vals: make([]float32, 700)}
	first := w.carry(t, last.frames())[2]
	rest := whole(r, 2)
	rest.keys, rest.lens, rest.vals = rest.keys[1:], rest.lens[1:], rest.vals[700:]
	for range 64 { // after so many a layer of keys of few values is forgotten of which nothing waits
		w.carry(t, rest.frames())
		rest.timestamp++
	}
	if e.worker.StillWaiting() > 0 {
		t.Fatal("something waits after all keys were pushed without a rule")
	}
	if again := w.carry(t, last.frames())[2]; !bytes.Equal(first, again) || bytes.Equal(first, make([]byte, 2800)) {
		t.Error("the push that had all along that waited of a key was repeated without it")
	}
}
