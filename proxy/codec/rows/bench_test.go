package rows

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/codectest"
)

// activations are rows of so many normally distributed values; with scales, each row
// has its own, over a factor of some ten.
func activations(d, bytes int, scales bool) []byte {
	rng := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, bytes/4/d*d*4)
	scale := 1.0
	for i := range len(b) / 4 {
		if scales && i%d == 0 {
			scale = math.Exp(0.6 * rng.NormFloat64())
		}
		element.Float32.Put(b, i, scale*rng.NormFloat64())
	}
	return b
}

func benchmarks(b *testing.B, run func(b *testing.B, values []byte, d int, sparsity float64)) {
	for _, mib := range codectest.MiB {
		for _, d := range []int{16, 64, 256, 1024} {
			for _, sparsity := range []float64{0.9, 0.95} {
				for _, scales := range []bool{false, true} {
					b.Run(fmt.Sprintf("%dMiB/rows of %d/%v/own scales %v", mib, d, sparsity, scales), func(b *testing.B) {
						run(b, activations(d, mib<<20, scales), d, sparsity)
					})
				}
			}
		}
	}
}

func encode(c *Chooser, v *sparse.Vector, wire, values []byte, d int, sparsity float64) []byte {
	c.Begin(v, element.Float32, len(values)/4, sparsity)
	for at := 0; at < len(values); at += 4 * d {
		c.Add(values[at : at+4*d])
	}
	return v.Append(wire)
}

// BenchmarkEncode is the way from activations to the wire form.
func BenchmarkEncode(b *testing.B) {
	benchmarks(b, func(b *testing.B, values []byte, d int, sparsity float64) {
		var c Chooser
		var v sparse.Vector
		var wire []byte
		codectest.BesideCopy(b, [][]byte{values}, func(values []byte) { wire = encode(&c, &v, wire[:0], values, d, sparsity) })
		b.ReportMetric(float64(len(values))/float64(len(wire)), "times-fewer")
	})
}

// BenchmarkGradients is the way from a gradient to the wire form, by a mask.
func BenchmarkGradients(b *testing.B) {
	benchmarks(b, func(b *testing.B, values []byte, d int, sparsity float64) {
		var c Chooser
		var v sparse.Vector
		var wire []byte
		encode(&c, &v, nil, values, d, sparsity)
		v.At = v.At[:0]
		codectest.BesideCopy(b, [][]byte{values}, func(values []byte) {
			v.Gather(values)
			wire = v.Append(wire[:0])
		})
	})
}

// BenchmarkDecode is the way from the wire form to activations or gradients.
func BenchmarkDecode(b *testing.B) {
	benchmarks(b, func(b *testing.B, values []byte, d int, sparsity float64) {
		var c Chooser
		var v, back sparse.Vector
		wire := encode(&c, &v, nil, values, d, sparsity)
		out := make([]byte, len(values))
		codectest.BesideCopy(b, [][]byte{values}, func(values []byte) {
			if _, err := back.Decode(wire, len(values)/4); err != nil {
				b.Fatal(err)
			}
			back.Expand(out)
		})
	})
}
