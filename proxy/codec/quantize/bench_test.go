package quantize

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/test/codectest"
)

func BenchmarkQuantize(b *testing.B) {
	for _, kind := range allKinds {
		for _, mib := range codectest.MiB {
			values := bytesOf(kind, normal(rand.New(rand.NewPCG(1, 1)), mib<<20/kind.Size(), 1))
			for bits := 1; bits <= 8; bits++ {
				if kind == element.Float32 || bits == 1 || bits == 8 {
					benchmarkQuantize(b, kind, values, bits)
				}
			}
		}
	}
}

func benchmarkQuantize(b *testing.B, kind element.Kind, values []byte, bits int) {
	c := Config{Bits: bits, Bucket: 512}
	wire, _ := c.Append(nil, kind, values, 1)
	var got []byte
	name := fmt.Sprintf("%v/%dMiB/%dbits", kind, len(values)>>20, bits)
	b.Run("encode/"+name, func(b *testing.B) {
		codectest.BesideCopy(b, [][]byte{values}, func(v []byte) { wire, _ = c.Append(wire[:0], kind, v, 1) })
	})
	b.Run("decode/"+name, func(b *testing.B) {
		codectest.BesideCopy(b, [][]byte{values}, func(v []byte) {
			var err error
			if got, _, err = Decode(got[:0], kind, len(v)/kind.Size(), wire); err != nil {
				b.Fatal(err)
			}
		})
	})
}
