package values

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// What cannot be coded passes as it is and is counted.
func TestWhatCannotBeCodedPasses(t *testing.T) {
	dense := make([]float32, 1000)
	for i := range dense {
		dense[i] = float32(i%10) - 4
	}
	whole := func(b []byte, n int) []byte { return append(b, make([]byte, n)...) }
	for _, c := range []struct {
		name   string
		rule   Rule
		before []request
		q      request
		want   Reason
	}{
		{"values that do not divide by keys", Rule{Unpulled: true, Threshold: 0.9}, nil, request{push: true, keys: []uint64{1, 2, 3}, vals: dense}, ReasonShape},
		{"values of type CHAR without a rule", Rule{Unpulled: true, Threshold: 0.9}, nil, request{push: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 4000)}, ReasonType},
		{"half a number", Rule{Unpulled: true, Threshold: 0.9, Elements: "float16"}, nil, request{head: float16s, push: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 4001)}, ReasonShape},
		{"bytes whose command says float16", Rule{Unpulled: true, Threshold: 0.9, Elements: "float32"}, nil, request{head: float16s, push: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 4000)}, ReasonType},
		{"bytes whose command says float32", Rule{Quantize: 8, Elements: "float16"}, nil, request{push: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 4000)}, ReasonType},
		{"row-sparse bytes", Rule{Quantize: 8, Elements: "float32"}, nil, request{head: 1, push: true, keys: []uint64{1}, kind: pslite.Other, raw: whole(nil, 4000)}, ReasonType},
		{"compressed bytes", Rule{Quantize: 8, Elements: "float32"}, nil, request{head: 3, push: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 4000)}, ReasonType},
		{"whole numbers", Rule{Unpulled: true, Threshold: 0.9}, nil, request{push: true, keys: []uint64{1}, kind: pslite.Int32, raw: whole(nil, 4000)}, ReasonType},
		{"another length", Rule{Unpulled: true, Threshold: 0.9}, []request{{push: true, keys: []uint64{1}, vals: dense}},
			request{timestamp: 1, push: true, keys: []uint64{1}, vals: dense[:800]}, ReasonLength},
		{"a pull of unknown values", Rule{Unchanged: true}, nil, request{pull: true, answer: true, keys: []uint64{1}, kind: pslite.Char, raw: whole(nil, 400)}, ReasonType},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, c.rule)
			from, to, node := e.worker, e.server, "ps9"
			if c.q.answer {
				from, to, node = to, from, "ps8"
			}
			w := e.dial(t, from, to, node)
			defer w.close()
			for _, q := range c.before {
				w.carry(t, q.frames())
			}
			want := c.q.frames()
			for i, f := range w.carry(t, want) {
				if string(f) != string(want[i]) {
					t.Errorf("frame %d was changed", i)
				}
			}
			if n := from.Counts().Reasons; n[c.want] != 1 {
				t.Errorf("counted %v, want one %q", n, c.want)
			}
		})
	}
}

// Commands by which MXNet and BytePS say what bytes are.
const float16s, bfloat16s = 5, 90

// A worker that did not say who it is has no residual: its pushes pass.
func TestUnknownWorker(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	w := e.dial(t, e.worker, e.server, "somebody")
	defer w.close()
	q := request{push: true, keys: []uint64{1}, vals: make([]float32, 600)}
	q.vals[5] = 1
	if got := floats(w.carry(t, q.frames())[2]); got[5] != 1 || e.worker.Counts().Reasons[ReasonIdentity] != 1 {
		t.Errorf("value 5 came as %v; %v", got[5], e.worker.Counts())
	}
}

// Memory at its bound: layers beyond it pass, the others go on.
func TestStateIsBounded(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	e.worker.budget.limit = 100_000
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	for step := range 50 {
		q := request{timestamp: int32(step), push: true, keys: []uint64{uint64(step % 10), 1<<20 + uint64(step)}, lens: []int32{5000, 3}, vals: make([]float32, 5003)}
		for i := range q.vals {
			q.vals[i] = float32(i % 7)
		}
		w.carry(t, q.frames())
	}
	if c := e.worker.Counts(); c.StateBytes > 100_000 || c.Reasons[ReasonMemory] == 0 || len(c.Forms) != 2 {
		t.Errorf("%+v", c)
	}
}

// What is kept for repeats counts towards the bound, in jobs that repeat nothing too: as
// much is kept as there is room.
func TestRepeatsAreBounded(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.5})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	push := func(step int) {
		w.carry(t, request{timestamp: int32(step), push: true, keys: []uint64{1}, vals: normal(rand.New(rand.NewPCG(1, uint64(step))), 1000)}.frames())
	}
	push(0)
	layer := e.worker.Counts().StateBytes
	push(1)
	if each := e.worker.Counts().StateBytes - layer; each < 2000 { // half of the values
		t.Fatalf("a push that may be repeated counts %d bytes", each)
	}
	e.worker.budget.limit = layer + 20_000
	for step := range 50 {
		push(2 + step)
	}
	if c := e.worker.Counts(); c.StateBytes > layer+20_000 || c.Reasons[ReasonForgotten] == 0 {
		t.Errorf("%d bytes, want at most %d; %v", c.StateBytes, layer+20_000, c.Reasons)
	}
}

// Numbers that are not finite go at once, arrive, and leave nothing behind.
func TestNotFinite(t *testing.T) {
	for _, kind := range []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16} {
		e := newEnds(t, Rule{Unpulled: true, Threshold: 0.5, Elements: kind.String()})
		w := e.dial(t, e.worker, e.server, "ps9")
		r := rand.New(rand.NewPCG(1, 1))
		const n = 1000
		for step := range 5 {
			raw := make([]byte, n*kind.Size())
			for i := range n {
				kind.Put(raw, i, float64(r.IntN(20)-10))
			}
			dataType := map[element.Kind]pslite.DataType{element.Float32: pslite.Float, element.Float64: pslite.Double,
				element.Float16: pslite.Char, element.BFloat16: pslite.Other}[kind]
			q := request{timestamp: int32(step), head: map[element.Kind]int32{element.Float16: float16s, element.BFloat16: bfloat16s}[kind], push: true, keys: []uint64{1}, kind: dataType, raw: raw}
			if step == 2 {
				kind.Put(raw, 10, math.Inf(1))
				kind.Put(raw, 11, math.NaN())
			}
			got := w.carry(t, q.frames())[2]
			for i := range n {
				v := kind.At(got, i)
				if isOdd := step == 2 && (i == 10 || i == 11); isOdd != (math.IsNaN(v) || math.IsInf(v, 0)) {
					t.Errorf("%v, step %d: number %d is %v", kind, step, i, v)
				}
			}
		}
		if c := e.worker.Counts(); c.Reasons[ReasonNotFinite] != 1 {
			t.Errorf("%v: %+v", kind, c)
		}
		w.close()
	}
}

// A process that takes the place of another with its node id begins anew.
func TestRestartedWorker(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	push := func(w *way, timestamp int32, value float32) []float32 {
		q := request{timestamp: timestamp, push: true, keys: []uint64{1}, vals: make([]float32, 600)}
		for i := range q.vals {
			q.vals[i] = value
		}
		q.vals[7] *= 100
		for i := range 70 {
			q.vals[20+i] *= 10
		}
		return floats(w.carry(t, q.frames())[2])
	}
	w := e.dial(t, e.worker, e.server, "ps9")
	for step := range int32(10) {
		push(w, 100+step, 1)
	}
	w.close()
	w = e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	if got := push(w, 3, 1); got[7] != 100 || got[500] != 0 {
		t.Errorf("the new process's values came as %v and %v", got[7], got[500])
	}
	if n := e.worker.Counts().Reasons[ReasonRestarted]; n != 1 {
		t.Errorf("counted %d restarts", n)
	}
}

func TestRules(t *testing.T) {
	for text, want := range map[string]string{
		`[{"threshold":1}]`:    "threshold 1: want a sparsity from 0",
		`[{"threshold":-0.5}]`: "threshold -0.5",
		`[{"threshold":0.9},{"threshold":0.9,"threshold-lifespan":-1}]`: "rule 2: threshold-lifespan -1",
		`[{"threshold-drain":-1}]`:                                      "threshold-drain -1",
		`[{"quantize":9}]`:                                              "quantize 9: want 1 to 8",
		`[{"quantize":8,"quantize-bucket":3}]`:                          "quantize-bucket 3",
		`[{"slim":{"alpha":0.3,"epsilon":0.4}}]`:                        "slim epsilon 0.4: want 0 to alpha",
		`[{"slim":{"alpha":1.3,"epsilon":0.4}}]`:                        "slim alpha 1.3",
		`[{"slim":{"alpha":0.3,"epsilon":0.1},"unchanged":true}]`:       "exclude each other",
		`[{"slim":{"alpha":0.3,"epsilon":0.1},"threshold":0.9}]`:        "exclude each other",
		`[{"elements":"float8"}]`:                                       "float8",
		`[{"threshold-activations":1}]`:                                 "threshold-activations 1: want a sparsity from 0",
		`[{"threshold-activations":0.9,"row":-1}]`:                      "row -1",
		`[{"row":16}]`: "threshold-activations, which is off",
		`[{"threshold":0.9,"activations-pushed":true}]`:     "threshold-activations, which is off",
		`[{"threshold-activations":0.9,"threshold":0.9}]`:   "exclude each other for the same keys",
		`[{"threshold-activations":0.9,"pull-quantize":4}]`: "excludes slim, unchanged",
		`[{"threshold-activations":0.9,"unchanged":true}]`:  "excludes slim, unchanged",
		`[{"keys":"9-3"}]`:                      "first is behind the last",
		`[{"keys":"a-b"}]`:                      "want first-last",
		`[{"layers":["1-5","3-9"]}]`:            "do not overlap",
		`[{"treshold":0.9}]`:                    "treshold",
		`{"threshold":0.9}`:                     "rules",
		`[` + strings.Repeat(`{},`, 70) + `{}]`: "at most 64",
	} {
		if _, err := ParseRules(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	rules, err := ParseRules(strings.NewReader(`[{"job":"10.0.0.1:8000","keys":"10-19","threshold":0.9,"layers":["12-13"]},{"quantize":8},{}]`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range compile(rules, "10.0.0.1:8000", "", acrossHosts) {
		got = append(got, s.Range.String())
	}
	if all := strings.Join(got, " "); all != "0-9 10-11 12-13 14-19 20-18446744073709551615" {
		t.Errorf("spans %s", all)
	}
	if other := compile(rules, "10.0.0.2:8000", "", acrossHosts); len(other) != 1 || other[0].rule.Quantize != 8 {
		t.Errorf("another job's spans: %+v", other)
	}
}

// Whatever sections come over a link, a receiver does not panic and says that
// they are corrupt.
func FuzzReceiver(f *testing.F) {
	rules := []Rule{{Keys: Range{0, 99}, Unpulled: true, Threshold: 0.9, Quantize: 4}, {Keys: Range{100, 199}, Unpulled: true, Slim: &Slim{Alpha: 0.5, Epsilon: 0.2, Rounds: 2}}, {Keys: Range{300, 300}, Unchanged: true, Unpulled: true, Threshold: 0.5, Wire: "bf16"}, {Keys: Range{400, 499}, Activations: 0.5}, {PullThreshold: 0.5, PullQuantize: 4, Wire: "fp16"}}
	r := rand.New(rand.NewPCG(1, 1))
	for _, isPull := range []bool{false, true} {
		e := newEnds(f, rules...)
		from, to, node := e.worker, e.server, "ps9"
		if isPull {
			from, to, node = to, from, "ps8"
		}
		w := e.dial(f, from, to, node)
		var heads [][]byte
		for step := range 4 {
			q := request{timestamp: int32(step), push: !isPull, pull: isPull, answer: isPull, keys: []uint64{1, 150, 300, 301}, lens: []int32{40, 30, 40, 2}}
			for range 112 {
				q.vals = append(q.vals, float32(r.NormFloat64()))
			}
			head, _, ok := w.sender.Encode(nil, message(q.frames()))
			if !ok {
				f.Fatal("not encoded")
			}
			size := int(binary.LittleEndian.Uint32(head[len(head)-5:]))
			heads = append(heads, head[len(head)-5-size:len(head)-5])
		}
		f.Add(heads[1], heads[2], heads[3])
		f.Add([]byte{16, byte(partRows), 0, 2, 3, 1, 0, 2, byte(partSparse), 0, 4, 1, 0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
			[]byte{8, byte(partRows), 1, 2, 0, 1, 1, 0, byte(partSparse), 0, 2, 0, 0}, []byte{16, byte(partRows), 3, 1, 5, 2, 0, 1, 1, 2, byte(partHalvedSparse), 0, 4, 2, 15, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8})
		f.Add([]byte{16, byte(partByKey), 0, 0, 4, 1, 0, 4, 1, 0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
			[]byte{16, byte(partByKey), 0, 0, 4, 1, 0, 4, 0, 0}, []byte{16, byte(partByKey), forgetKeys, 0, 4, 1, 0, 4, 0, 0})
		w.close()
	}
	codec := newEnds(f).worker
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		r := bareReceiver(t, codec)
		r.keys = pslite.AppendKeys(nil, []uint64{1, 150, 300, 301})
		defer r.state.Close()
		defer r.Release()
		for _, section := range [][]byte{first, second, third} {
			if n, _, err := uvarint(section); err == nil && n > 1<<20 {
				return // only slow
			}
			values, err := r.values(append([]byte(nil), section...))
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				return
			}
			if n, _, _ := uvarint(section); len(values) != n {
				t.Fatalf("%d bytes of values, %d were said", len(values), n)
			}
			r.Release()
		}
	})
}

// A key without values between two of many passes, whatever is done to those.
func TestAKeyWithoutValues(t *testing.T) {
	for name, rule := range map[string]Rule{
		"threshold": {Unpulled: true, Threshold: 0.9}, "quantize": {Quantize: 8}, "wire": {Wire: "bf16"}, "slim": {Slim: &Slim{Alpha: 0.3, Epsilon: 0.15, Rounds: 1}},
		"unchanged": {Unchanged: true}, "pull-threshold": {PullThreshold: 0.9}, "pull-quantize": {PullQuantize: 4}, "threshold-activations": {Activations: 0.9},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, rule)
			up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
			defer up.close()
			defer down.close()
			for step := range 4 {
				q := request{timestamp: int32(step), push: true, keys: []uint64{3, 5, 8, 9}, vals: make([]float32, 1200), lens: []int32{600, 0, 600, 0}}
				for i := range q.vals {
					q.vals[i] = float32(i%7 + step)
				}
				pull := request{timestamp: int32(step), pull: true, keys: q.keys}
				answer := q
				answer.push, answer.pull, answer.answer = false, true, true
				for _, out := range [][][]byte{up.carry(t, q.frames()), carryPull(t, up, down, pull, answer)} {
					if n := len(out[2]); n != 4800 {
						t.Fatalf("step %d: %d bytes of values came out", step, n)
					}
				}
			}
		})
	}
}

func carryPull(t *testing.T, up, down *way, pull, answer request) [][]byte {
	t.Helper()
	m := pslite.Meta{Timestamp: pull.timestamp, Request: true, Pull: true, DataTypes: []pslite.DataType{pslite.Uint64}}
	up.carry(t, [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, pull.keys), nil})
	return down.carry(t, answer.frames())
}

// bareReceiver returns a receiver of sections alone.
func bareReceiver(t *testing.T, c *Codec) *Receiver {
	t.Helper()
	inner := compact.New(compact.DefaultLimits)
	_, cr, err := inner.Open(relay.Link{Memory: memory}, inner.Offer())
	require.NoError(t, err)
	return newReceiver(c, relay.Link{}, cr.(*compact.Receiver))
}
