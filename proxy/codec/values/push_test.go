package values

import (
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// sums adds up by key what a server gets.
type sums map[uint64][]float64

func (s sums) add(keys []uint64, vals []float32, lens []int32) {
	from := 0
	for i, k := range keys {
		n := len(vals) / len(keys)
		if lens != nil {
			n = int(lens[i])
		}
		if len(s[k]) < n {
			s[k] = append(s[k], make([]float64, n-len(s[k]))...)
		}
		for j := range n {
			s[k][j] += float64(vals[from+j])
		}
		from += n
	}
}

func (s sums) difference(o sums) (missing float64) {
	for k, v := range s {
		for j := range v {
			d := v[j]
			if j < len(o[k]) {
				d -= o[k][j]
			}
			missing += max(d, -d)
		}
	}
	return missing
}

// pushes makes pushes of whole numbers of several shapes: keys of one value
// that differ from push to push, keys of 16 values, long keys with lens.
func pushes(r *rand.Rand, step int) request {
	q := request{timestamp: int32(step), push: true}
	whole := func(n int) {
		for range n {
			v := float32(r.IntN(9) - 4)
			if r.IntN(50) == 0 {
				v *= 100
			}
			q.vals = append(q.vals, v)
		}
	}
	switch step % 3 {
	case 0:
		q.keys = randomKeys(r, 200, 3000)
		whole(200)
	case 1:
		q.keys = randomKeys(r, 50, 500)
		for i := range q.keys {
			q.keys[i] += 10_000
		}
		whole(16 * 50)
	case 2:
		q.keys, q.lens = []uint64{1 << 40, 1<<40 + 1, 1<<40 + 7}, []int32{700, 3, 5000}
		whole(5703)
	}
	return q
}

// What a server has got and what still waits is what was pushed, exactly; with
// the threshold taken away, nothing waits after a push of every key.
func TestThresholdLosesNothing(t *testing.T) {
	rule := Rule{Unpulled: true, Threshold: 0.95, Lifespan: 10}
	e := newEnds(t, rule)
	r := rand.New(rand.NewPCG(1, 2))
	w := e.dial(t, e.worker, e.server, "ps9")
	pushed, got := sums{}, sums{}
	plain, encoded := 0, 0
	send := func(q request) {
		t.Helper()
		plain, encoded = plain-w.plain, encoded-w.encoded
		defer func() { plain, encoded = plain+w.plain, encoded+w.encoded }()
		pushed.add(q.keys, q.vals, q.lens)
		out := w.carry(t, q.frames())
		if string(out[1]) != string(q.frames()[1]) {
			t.Fatal("other keys came")
		}
		got.add(q.keys, floats(out[2]), q.lens)
	}
	for step := range 300 {
		if step%40 == 39 { // another connection, sometimes before the old one has ended
			before := w
			w = e.dial(t, e.worker, e.server, "ps9")
			before.close()
		}
		switch step {
		case 120:
			rule.Threshold, rule.Layers = 0.9, []Range{{0, 300}, {500, 1000}}
			require.NoError(t, e.worker.SetRules([]Rule{rule}))
		case 200:
			rule = Rule{Unpulled: true, Threshold: 0.5, Lifespan: 1, Keys: Range{0, 1 << 20}}
			require.NoError(t, e.worker.SetRules([]Rule{rule}))
		}
		send(pushes(r, step))
	}
	waits := pushed.difference(got)
	if waits == 0 || plain < 2*encoded {
		t.Errorf("%v waits, %d bytes went as %d: too little was held back", waits, plain, encoded)
	}
	require.NoError(t, e.worker.SetRules(nil))
	for k, v := range pushed {
		send(request{timestamp: 1000 + int32(k%100000), push: true, keys: []uint64{k}, vals: make([]float32, len(v))})
	}
	if left := pushed.difference(got) + got.difference(pushed); left != 0 {
		t.Errorf("%v of what was pushed has not come", left)
	}
	w.close()
	if counts := e.worker.Counts(); counts.StateBytes > 1<<20 {
		t.Errorf("state of %d bytes is left: %+v", counts.StateBytes, counts)
	}
}

// A repeat of PS_RESEND changes nothing: the same bytes go.
func TestRepeatsGoAsTheFirst(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9, Lifespan: 5})
	r := rand.New(rand.NewPCG(3, 4))
	w := e.dial(t, e.worker, e.server, "ps9")
	pushed, got := sums{}, sums{}
	var late []request
	for step := range 200 {
		q := pushes(r, step)
		first := w.carry(t, q.frames())
		pushed.add(q.keys, q.vals, q.lens)
		got.add(q.keys, floats(first[2]), q.lens)
		if r.IntN(3) == 0 {
			late = append(late, q)
		}
		if len(late) > 0 && r.IntN(3) == 0 {
			if r.IntN(4) == 0 {
				w.close()
				w = e.dial(t, e.worker, e.server, "ps9")
			}
			q = late[0]
			late = late[1:]
			before := w.encoded
			w.carry(t, q.frames())
			if w.encoded == before {
				t.Fatal("nothing was sent")
			}
		}
	}
	require.NoError(t, e.worker.SetRules(nil))
	for k, v := range pushed {
		q := request{timestamp: 1000 + int32(k%100000), push: true, keys: []uint64{k}, vals: make([]float32, len(v))}
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), nil)
	}
	if left := pushed.difference(got) + got.difference(pushed); left != 0 {
		t.Errorf("sums are off by %v", left)
	}
	if n := e.worker.Counts().Reasons[ReasonRepeat]; n < 20 {
		t.Errorf("%d repeats were recognised", n)
	}
}

// A message's meta is decoded once, by whomever of the relay and the codecs asks
// first.
func TestMetaDecodedOnce(t *testing.T) {
	for name, rules := range map[string][]Rule{"compact": nil, "threshold": {{Threshold: 0.9, Unpulled: true}}, "unchanged": {{Unchanged: true}}} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, rules...)
			w := e.dial(t, e.worker, e.server, "ps9")
			defer w.close()
			r := rand.New(rand.NewPCG(1, 2))
			const messages = 30
			for i := range messages {
				q := pushes(r, i)
				if i%2 == 0 {
					q.push, q.pull, q.answer = false, true, true
				}
				w.carry(t, q.frames())
			}
			if n := w.detector.Decoded(); n != messages {
				t.Errorf("the metas of %d messages were decoded %d times", messages, n)
			}
		})
	}
}

// The first push of a worker's next process is not taken for a repetition of one that the
// process before made under the same timestamp, also if both begin and end with zeros.
func TestANewProcessIsNotTakenForARepetition(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
	const row, rows = 256, 256
	gradient := func(first int) request {
		vals := make([]float32, row*rows)
		for at := first; at < rows-8; at += 10 {
			for i := range row {
				vals[row*at+i] = float32(first)
			}
		}
		return request{timestamp: 5, push: true, keys: []uint64{1}, vals: vals, lens: []int32{row * rows}}
	}
	before := e.dial(t, e.worker, e.server, "ps9")
	before.carry(t, gradient(10).frames())
	before.close()
	now := e.dial(t, e.worker, e.server, "ps9")
	defer now.close()
	sent := 0
	for i, v := range floats(now.carry(t, gradient(11).frames())[2]) {
		if v == 0 {
			continue
		}
		if sent++; v != 11 {
			t.Fatalf("number %d is %v, which the process before has pushed", i, v)
		}
	}
	if sent == 0 {
		t.Error("nothing is sent")
	}
}
