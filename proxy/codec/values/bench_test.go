package values

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// processorTime is what this process has taken: on a busy machine it says more than
// the clock.
func processorTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPush is a push of a million numbers, in memory alone and so that what
// waits survives a kill.
func BenchmarkPush(b *testing.B) {
	for _, folder := range []string{"", b.TempDir(), "/dev/shm"} {
		for _, shape := range []struct{ keys, width int }{{1, 1 << 20}, {1000, 1}, {100_000, 1}} {
			name := map[bool]string{true: "memory", false: "file"}[folder == ""]
			if folder == "/dev/shm" {
				name = "shm"
			}
			b.Run(fmt.Sprintf("%s/%dx%d", name, shape.keys, shape.width), func(b *testing.B) {
				dir := folder
				if dir != "" {
					dir = filepath.Join(folder, fmt.Sprint("psidecar-bench-", os.Getpid(), shape.keys))
					defer os.RemoveAll(dir)
				}
				c, err := New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.99}}, Folder: dir})
				if err != nil {
					b.Fatal(err)
				}
				e := newEnds(b)
				w := e.dial(b, c, e.server, "ps9")
				r := rand.New(rand.NewPCG(4, 4))
				q := request{push: true, vals: normal(r, shape.keys*shape.width)}
				for k := range shape.keys {
					q.keys = append(q.keys, uint64(k*37))
				}
				frames := q.frames()
				b.SetBytes(int64(4 * shape.keys * shape.width))
				var head []byte
				began := processorTime(b)
				for b.Loop() {
					q.timestamp++
					m := request{push: true, timestamp: q.timestamp, keys: q.keys[:1], vals: q.vals[:1]}
					frames[0] = m.frames()[0]
					head, _, _ = w.sender.Encode(head[:0], message(frames))
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkIndex is the look-up of a list of a hundred thousand keys: that by which the
// index was made, a random half of it, and one in ten of it with the order of arrival
// mixed, which is the worst case.
func BenchmarkIndex(b *testing.B) {
	const n = 100_000
	r := rand.New(rand.NewPCG(5, 5))
	x, mixed := newIndex(), newIndex()
	var all []uint64
	for i := range n {
		all = append(all, r.Uint64()>>20<<17+uint64(i))
	}
	for _, i := range r.Perm(n) {
		mixed.add(all[i], 1)
	}
	slices.Sort(all)
	for _, k := range all {
		x.add(k, 1)
	}
	var half, tenth []uint64
	for _, k := range all {
		if r.IntN(2) == 0 {
			half = append(half, k)
		}
		if r.IntN(10) == 0 {
			tenth = append(tenth, k)
		}
	}
	for _, c := range []struct {
		name string
		x    *index
		keys []uint64
	}{{"same", x, all}, {"half", x, half}, {"tenth", x, tenth}, {"mixed", mixed, tenth}} {
		b.Run(c.name, func(b *testing.B) {
			keys := pslite.Keys(pslite.AppendKeys(nil, c.keys))
			p := piece{keys: len(c.keys), width: 1}
			var at []uint32
			began := processorTime(b)
			for b.Loop() {
				var missing int
				if at, missing, _, _ = c.x.locate(at[:0], keys, &p); missing > 0 {
					b.Fatal("keys are missing")
				}
			}
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N)/float64(len(c.keys)), "cpu-ns/key")
		})
	}
}

// BenchmarkMiniBatches is a pull's request and the push that follows, of keys that are
// chosen anew each time, some far more often than others, as those of mini-batches of a
// sparse model are: processor time of each message at each end.
func BenchmarkMiniBatches(b *testing.B) {
	const all, each, lists = 30_000, 900, 300
	e := newEnds(b, Rule{Threshold: 0.99})
	w := e.dial(b, e.worker, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(6, 6))
	zipf := rand.NewZipf(r, 1.1, 100, all-1)
	var pulls, pushes [lists][][]byte
	for i := range lists {
		var keys []uint64
		for range 2 * each {
			keys = append(keys, zipf.Uint64()*99991%all*37)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		pulls[i] = (request{pull: true, keys: keys}).frames()
		pushes[i] = (request{push: true, keys: keys, vals: normal(r, len(keys))}).frames()
	}
	spent := [3]int64{}
	stamp := int32(0)
	pass := func(frames [][]byte, count bool, at int) {
		stamp++
		m := request{push: at == 1, pull: at == 0, timestamp: stamp, keys: []uint64{1}}
		held := append([][]byte{m.frames()[0]}, frames[1:]...)
		began := processorTime(b)
		head, _, ok := w.sender.Encode(nil, &relay.Message{Frames: held, Detector: &w.detector})
		between := processorTime(b)
		if ok {
			if _, _, err := w.receiver.Decode(head); err != nil {
				b.Fatal(err)
			}
			if r, ok := w.receiver.(relay.Releaser); ok {
				r.Release()
			}
		}
		if count {
			spent[at] += int64(between) - int64(began)
			spent[2] += int64(processorTime(b)) - int64(between)
		}
	}
	round := func(count bool) {
		for i := range lists {
			pass(pulls[i], count, 0)
			pass(pushes[i], count, 1)
		}
	}
	round(false)
	for b.Loop() {
		round(true)
	}
	for i, name := range []string{"pull-cpu-ns", "push-cpu-ns", "decode-cpu-ns"} {
		b.ReportMetric(float64(spent[i])/float64(b.N*lists), name)
	}
}

// BenchmarkNarrowAnswers is the answer of a pull of such keys, with copies at both ends.
func BenchmarkNarrowAnswers(b *testing.B) {
	const all, each, lists = 30_000, 900, 300
	e := newEnds(b, Rule{PullThreshold: 0.95})
	w := e.dial(b, e.server, e.worker, "ps8")
	defer w.close()
	r := rand.New(rand.NewPCG(7, 7))
	zipf := rand.NewZipf(r, 1.1, 100, all-1)
	var answers [lists][][]byte
	for i := range answers {
		var keys []uint64
		for range 2 * each {
			keys = append(keys, zipf.Uint64()*99991%all*37)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		answers[i] = (request{pull: true, answer: true, timestamp: int32(i), keys: keys, vals: normal(r, len(keys))}).frames()
	}
	var encoding, decoding int64
	round := func() {
		for _, frames := range answers {
			began := int64(processorTime(b))
			head, _, ok := w.sender.Encode(nil, &relay.Message{Frames: slices.Clone(frames), Detector: &w.detector})
			between := int64(processorTime(b))
			if !ok {
				b.Fatal("an answer goes as it is")
			}
			if _, _, err := w.receiver.Decode(head); err != nil {
				b.Fatal(err)
			}
			if r, ok := w.receiver.(relay.Releaser); ok {
				r.Release()
			}
			encoding, decoding = encoding+between-began, decoding+int64(processorTime(b))-between
		}
	}
	round()
	encoding, decoding = 0, 0
	for b.Loop() {
		round()
	}
	b.ReportMetric(float64(encoding)/float64(b.N*lists), "encode-cpu-ns")
	b.ReportMetric(float64(decoding)/float64(b.N*lists), "decode-cpu-ns")
}
