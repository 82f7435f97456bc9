package ef21

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/test/codectest"
)

// sizes are those of a small message's values, and of what caches hold and do not.
var sizes = map[string]int{"11kB": 11_000, "4MiB": 4 << 20, "64MiB": 64 << 20}

// models are two states of a model, between which all numbers differ.
func models(kind element.Kind, size int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 1))
	m := [][]byte{make([]byte, size), make([]byte, size)}
	for i := range size / kind.Size() {
		v := rng.NormFloat64()
		kind.Put(m[0], i, v)
		kind.Put(m[1], i, v+0.01*rng.NormFloat64())
	}
	return m
}

func benchmarks(b *testing.B, run func(b *testing.B, c Config, kind element.Kind, size int)) {
	for _, name := range []string{"11kB", "4MiB", "64MiB"} {
		for _, c := range []Config{{Sparsity: 0.95}, {Sparsity: 0.95, Half: true}, {Sparsity: 0.95, Bits: 4, Bucket: 512}, {Bits: 4, Bucket: 512}, {Bits: 4, Bucket: 512, Packed: true}, {Bits: 8, Bucket: 512}} {
			b.Run(fmt.Sprintf("float32/%s/%v,%dbits,%v", name, c.Sparsity, c.Bits, c.Half || c.Packed), func(b *testing.B) { run(b, c, element.Float32, sizes[name]) })
		}
	}
	for _, kind := range allKinds[1:] {
		b.Run(fmt.Sprintf("%v/4MiB/0.95", kind), func(b *testing.B) { run(b, Config{Sparsity: 0.95}, kind, sizes["4MiB"]) })
	}
}

// BenchmarkEncode is a pull's answer from values to wire form. The copy goes back
// and forth between two models, of which a part is sent each time.
func BenchmarkEncode(b *testing.B) {
	benchmarks(b, func(b *testing.B, c Config, kind element.Kind, size int) {
		m := models(kind, size)
		here := bytes.Clone(m[0])
		var e Encoder
		var tau Threshold
		var wire []byte
		sum, count := 0, 0
		codectest.BesideCopy(b, m, func(x []byte) {
			wire, _, _ = e.Append(wire[:0], c, kind, &tau, here, x)
			sum, count = sum+len(wire), count+1
		})
		b.ReportMetric(float64(size)*float64(count)/float64(sum), "times-fewer")
	})
}

// BenchmarkDecode is the way from the wire form to the copy, and from that to the
// message.
func BenchmarkDecode(b *testing.B) {
	benchmarks(b, func(b *testing.B, c Config, kind element.Kind, size int) {
		m := models(kind, size)
		var e Encoder
		wire, _, _ := e.Append(nil, c, kind, new(Threshold), bytes.Clone(m[0]), m[1])
		var d Decoder
		copied, out := bytes.Clone(m[0]), make([]byte, size)
		codectest.BesideCopy(b, m, func([]byte) {
			if _, err := d.Decode(kind, copied, wire); err != nil {
				b.Fatal(err)
			}
			copy(out, copied)
		})
	})
}
