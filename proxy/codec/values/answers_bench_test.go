package values

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkAnswers is a pull's answer from message to link and back to the message,
// of the size of a small one and a large one: processor time of a message, and of a
// GB of values as the job has them, at each end.
func BenchmarkAnswers(b *testing.B) {
	for _, size := range []struct {
		name string
		vals int
	}{{"11kB", 2750}, {"4MiB", 1 << 20}} {
		for _, c := range []struct {
			name string
			rule Rule
		}{
			{"compact", Rule{}}, {"unchanged", Rule{Unchanged: true}}, {"pull-threshold 0.95", Rule{PullThreshold: 0.95}},
			{"pull-threshold 0.95 bf16", Rule{PullThreshold: 0.95, Wire: "bf16"}}, {"pull-quantize 4", Rule{PullQuantize: 4}}, {"bf16", Rule{Wire: "bf16"}},
		} {
			b.Run(size.name+"/"+c.name, func(b *testing.B) { benchmarkAnswers(b, size.vals, c.rule) })
		}
	}
}

func benchmarkAnswers(b *testing.B, n int, rule Rule) {
	e := newEnds(b, rule)
	w := e.dial(b, e.server, e.worker, "ps8")
	defer w.close()
	rng := rand.New(rand.NewPCG(1, 1))
	var models [2][]float32
	for i := range models {
		models[i] = make([]float32, n)
	}
	for i := range n {
		models[0][i] = float32(rng.NormFloat64())
		models[1][i] = models[0][i] + float32(0.01*rng.NormFloat64())
	}
	var frames [2][][]byte
	for i, vals := range models {
		frames[i] = (request{pull: true, answer: true, keys: []uint64{1}, vals: vals}).frames()
	}
	spent := func() time.Duration {
		var t unix.Timespec
		require.NoError(b, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t))
		return time.Duration(t.Nano())
	}
	for _, f := range [][][]byte{frames[0], frames[1], frames[0]} {
		w.carry(b, f) // the first goes whole
	}
	var encoding, decoding time.Duration
	var head []byte
	bytes, turn := 0, 0
	for b.Loop() {
		turn++
		began := spent()
		var plain uint32
		var ok bool
		head, plain, ok = w.sender.Encode(head[:0], message(frames[turn%2]))
		encoded := spent()
		encoding += encoded - began
		if !ok { // it passes
			bytes += 4 * n
			continue
		}
		if _, _, err := w.receiver.Decode(head); err != nil {
			b.Fatal(err)
		}
		w.receiver.(*Receiver).Release()
		decoding += spent() - encoded
		if bytes += len(head); plain != 0 {
			bytes += 4 * n
		}
	}
	each := func(d time.Duration) float64 { return d.Seconds() / float64(b.N) }
	gb := 4 * float64(n) / 1e9
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1e6*each(encoding), "µs-encode")
	b.ReportMetric(1e6*each(decoding), "µs-decode")
	b.ReportMetric(each(encoding)/gb, "s/GB-encode")
	b.ReportMetric(each(decoding)/gb, "s/GB-decode")
	b.ReportMetric(4*float64(n)*float64(b.N)/float64(bytes), "times-fewer")
}
