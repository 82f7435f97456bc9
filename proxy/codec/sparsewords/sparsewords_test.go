package sparsewords

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// gradient is n float32 numbers of which a share is not zero.
func gradient(rng *rand.Rand, n int, share float64) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		if rng.Float64() < share {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(rng.NormFloat64())))
		}
	}
	return b
}

func decode(t testing.TB, src []byte, most int) (body, rest []byte) {
	t.Helper()
	var d Decoder
	size, err := d.Open(src, most)
	require.NoError(t, err)
	out := bytes.Repeat([]byte{0xaa}, size)
	rest = require.Value(d.Fill(out))(t)
	return out, rest
}

// A push of which 98% are zeros takes forty times fewer bytes.
func TestGradientOfZeros(t *testing.T) {
	body := gradient(rand.New(rand.NewPCG(1, 2)), 2<<20, 0.02)
	var e Encoder
	head, ok := e.Append(nil, body, 4)
	if !ok {
		t.Fatal("it is not encoded")
	}
	if ratio := float64(len(body)) / float64(len(head)); ratio < 40 {
		t.Errorf("%.1f times fewer bytes, want 40", ratio)
	}
	if got, rest := decode(t, head, len(body)); len(rest) != 0 || !bytes.Equal(got, body) {
		t.Error("other bytes come out")
	}
}

// Whatever the words mean, the same bits come out: signs of zeros, NaNs, common
// words that are not zero, and lengths that are no multiple of anything.
func TestSameBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		width := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "width")
		common := rapid.SampledFrom([]uint64{0, 1, 1 << 15, 1 << 31, 1 << 63, math.MaxUint64, 0x7fc00001}).Draw(t, "common")
		others := []uint64{0, common ^ 1, 1 << (8*width - 1), 0x7f800000, 0xffc00123, rng.Uint64(), rng.Uint64()}
		n := rapid.IntRange(1, 2000).Draw(t, "words")
		share := rapid.SampledFrom([]float64{0, 0.001, 0.02, 0.2, 0.5, 1}).Draw(t, "share")
		var body []byte
		for range n {
			w := common
			if rng.Float64() < share {
				w = others[rng.IntN(len(others))]
			}
			body = appendWord(body, w, width)
		}
		var e Encoder
		before := []byte("before")
		head, ok := e.Append(before, body, width)
		if !ok {
			if !bytes.Equal(head, before) {
				t.Fatal("something was appended")
			}
			if share <= 0.02 && len(body) >= Least && n > 600 {
				t.Fatalf("%d words, of which %v are others, are not encoded", n, share)
			}
			return
		}
		src := append(head[len(before):], "behind"...)
		var d Decoder
		size, err := d.Open(src, len(body))
		if err != nil || size != len(body) {
			t.Fatal(size, err)
		}
		out := bytes.Repeat([]byte{0x55}, size)
		rest, err := d.Fill(out)
		if err != nil || string(rest) != "behind" || !bytes.Equal(out, body) {
			t.Fatalf("%v, rest %q, equal %v", err, rest, bytes.Equal(out, body))
		}
		if _, err := d.Open(src, len(body)-1); err == nil {
			t.Fatal("more bytes are accepted than were asked for")
		}
	})
}

// Any bytes give an error or a body within the bound.
func FuzzDecode(f *testing.F) {
	var e Encoder
	for _, share := range []float64{0, 0.01, 0.1} {
		head, _ := e.Append(nil, gradient(rand.New(rand.NewPCG(1, 1)), 500, share), 4)
		f.Add(head)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var d Decoder
		size, err := d.Open(src, 1<<16)
		if err != nil {
			return
		}
		if size > 1<<16 {
			t.Fatalf("%d bytes", size)
		}
		if rest, err := d.Fill(make([]byte, size)); err == nil && len(rest) > len(src) {
			t.Fatal("more is left than there was")
		}
	})
}

// What a dense push costs, beside a copy of 4 and of 64 MiB: with 98% zeros, and
// with none, where looking at samples must be all.
func BenchmarkCodec(b *testing.B) {
	for _, mib := range []int{4, 64} {
		rng := rand.New(rand.NewPCG(4, 4))
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			for _, c := range []struct {
				name  string
				share float64
			}{{"zeros=98%", 0.02}, {"zeros=90%", 0.1}, {"zeros=0", 1}} {
				body := gradient(rng, mib<<18, c.share)
				out := make([]byte, len(body))
				var e Encoder
				head, encoded := e.Append(nil, body, 4)
				b.Run("encode/"+c.name, func(b *testing.B) {
					b.SetBytes(int64(len(body)))
					for b.Loop() {
						head, _ = e.Append(head[:0], body, 4)
					}
					if encoded {
						b.ReportMetric(float64(len(body))/float64(len(head)), "times_fewer")
					}
				})
				if !encoded {
					b.Run("memcpy", func(b *testing.B) {
						b.SetBytes(int64(len(body)))
						for b.Loop() {
							copy(out, body)
						}
					})
					continue
				}
				b.Run("decode/"+c.name, func(b *testing.B) {
					var d Decoder
					b.SetBytes(int64(len(body)))
					for b.Loop() {
						_, err := d.Open(head, len(out))
						if err == nil {
							_, err = d.Fill(out)
						}
						require.NoError(b, err)
					}
				})
			}
		})
	}
}
