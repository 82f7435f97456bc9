package planes

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// gradient is n normally distributed numbers.
func gradient(rng *rand.Rand, n int, kind element.Kind) []byte {
	b := make([]byte, n*kind.Size())
	for i := range n {
		kind.Put(b, i, rng.NormFloat64()/100)
	}
	return b
}

func decode(src []byte, most int) (body, rest []byte, err error) {
	var d Decoder
	size, err := d.Open(src, most)
	if err != nil {
		return nil, nil, err
	}
	body = bytes.Repeat([]byte{0xaa}, size)
	rest, err = d.Fill(body)
	return body, rest, err
}

// Numbers of every kind take fewer bytes, and the same bits come out, whatever they mean.
func TestSameBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		kind := element.Kind(rapid.IntRange(0, 3).Draw(t, "kind"))
		n := rapid.SampledFrom([]int{512, 513, 1000, block - 1, block, block + 1, 2*block + 700}).Draw(t, "numbers")
		body := gradient(rng, n, kind)
		for _, odd := range []float64{math.NaN(), math.Inf(-1), math.Copysign(0, -1), 5e-324, 1e-40, 6e-8} {
			kind.Put(body, rng.IntN(n), odd)
		}
		size := kind.Size()
		binary.LittleEndian.PutUint16(body[(n-1)*size+size-2:], 0x7f81) // a NaN with a payload
		before := []byte("before")
		var e Encoder
		head, ok := e.Append(before, body, size)
		if !ok {
			if len(body) >= Least {
				t.Fatal("it is not encoded")
			}
			return
		}
		got, rest, err := decode(append(head[len(before):], "behind"...), len(body))
		if err != nil || string(rest) != "behind" || !bytes.Equal(got, body) {
			t.Fatalf("%v, rest %q, equal %v", err, rest, bytes.Equal(got, body))
		}
		if _, _, err := decode(head[len(before):], len(body)-1); err == nil {
			t.Fatal("more bytes are accepted than were asked for")
		}
	})
}

func TestWhatDoesNotShrinkIsLeftAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, 8192)
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	var e Encoder
	for _, c := range []struct {
		body  []byte
		width int
	}{{body, 2}, {body, 4}, {body, 8}, {body[:Least-8], 4}, {gradient(rng, 1000, element.Float32)[:3999], 4}, {body, 3}} {
		if got, ok := e.Append([]byte("x"), c.body, c.width); ok || string(got) != "x" {
			t.Errorf("%d bytes of width %d become %d", len(c.body), c.width, len(got))
		}
	}
}

// Any bytes give an error or a body within the bound, and one that src can have.
func FuzzDecode(f *testing.F) {
	var e Encoder
	for kind := range element.Kind(4) {
		head, ok := e.Append(nil, gradient(rand.New(rand.NewPCG(1, 1)), 600, kind), kind.Size())
		if !ok {
			f.Fatal("no seed")
		}
		f.Add(head)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		body, rest, err := decode(src, 1<<16)
		if len(body) > 1<<16 || len(body) > 2*len(src) {
			t.Fatalf("%d bytes of %d", len(body), len(src))
		}
		if err == nil && len(rest) > len(src) {
			t.Fatal("more is left than there was")
		}
	})
}
