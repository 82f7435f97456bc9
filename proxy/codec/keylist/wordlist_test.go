package keylist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// frame is a values frame of floats.
func frame(n int, value func(i int) float32) []byte {
	var body []byte
	for i := range n {
		body = binary.LittleEndian.AppendUint32(body, math.Float32bits(value(i)))
	}
	return body
}

func random(different int) func(int) float32 {
	r := rand.New(rand.NewPCG(1, 2))
	return func(int) float32 { return float32(r.IntN(different)) * 0.3 }
}

// mixed is zero in a share of cases, and else one of some values.
func mixed(zeros float64, different int) func(int) float32 {
	r, other := rand.New(rand.NewPCG(3, 4)), random(different)
	return func(i int) float32 {
		if r.Float64() < zeros {
			return 0
		}
		return 1 + other(i)
	}
}

// gradient is a gradient's values: of samples, each of which has features of its own.
func gradient(samples int) func(int) float32 {
	rng := rand.New(rand.NewPCG(5, 5))
	of := make([]float32, samples)
	for i := range of {
		of[i] = float32(rng.NormFloat64()) / 410
	}
	return func(i int) float32 {
		if i < samples {
			return of[i]
		}
		return of[rng.IntN(samples)]
	}
}

func TestSizes(t *testing.T) {
	const all = 1 << 30
	for name, tc := range map[string]struct {
		n     int
		value func(int) float32
		most  float64 // bytes a word; 4: it is left alone
	}{
		"gradient":              {1262, gradient(615), 2.55},
		"all zero":              {10000, func(int) float32 { return 0 }, 0.14},
		"one other value":       {10000, func(int) float32 { return 1.5 }, 0.14},
		"half zero":             {10000, mixed(0.5, all), 2.2},
		"few":                   {10000, random(250), 1.2},
		"few, half zero":        {10000, mixed(0.5, 100), 0.62},
		"all different":         {10000, random(all), 4},
		"too short to look at":  {31, func(int) float32 { return 0 }, 4},
		"many different, twice": {10000, random(5000), 4},
		"too long":              {MostWords/wordSize + 1, func(int) float32 { return 0 }, 4},
		"as long as can be":     {MostWords / wordSize, func(int) float32 { return 0 }, 0.14},
	} {
		t.Run(name, func(t *testing.T) {
			body := frame(tc.n, tc.value)
			var e WordEncoder
			out, ok := e.Append([]byte("before"), body)
			if !ok {
				if tc.most < 4 || string(out) != "before" {
					t.Errorf("not encoded; %q", out)
				}
				return
			}
			if size := float64(len(out)-6) / float64(tc.n); size > tc.most {
				t.Errorf("%.2f bytes a word, want %.2f", size, tc.most)
			}
			var d WordDecoder
			got, rest, err := d.Decode(append(out[6:], "after"...))
			if err != nil || string(rest) != "after" || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %d come back, %q is left, %v", len(got), len(body), rest, err)
			}
		})
	}
}

func TestAnyListComesBack(t *testing.T) {
	var d WordDecoder
	var encoders [2]WordEncoder
	encoders[1].Plain = true
	rapid.Check(t, func(t *rapid.T) {
		e := &encoders[rapid.IntRange(0, 1).Draw(t, "plain")]
		palette := rapid.SliceOfN(rapid.Uint32(), 1, 300).Draw(t, "palette")
		picks := rapid.SliceOfN(rapid.IntRange(0, len(palette)-1), 0, 2000).Draw(t, "picks")
		var body []byte
		for _, i := range picks {
			body = binary.LittleEndian.AppendUint32(body, palette[i])
		}
		body = append(body, make([]byte, rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "more"))...)
		out, ok := e.Append(nil, body)
		if !ok {
			return
		}
		if len(out) >= len(body) || e.Plain && out[0]&(hasFirsts|hasPlanes) != 0 {
			t.Fatalf("%d bytes for %d, form %d", len(out), len(body), out[0])
		}
		got, rest, err := d.Decode(out)
		if err != nil || len(rest) > 0 || !bytes.Equal(got, body) {
			t.Fatalf("%x, %x, %v", got, rest, err)
		}
	})
}

// What one list has left behind does not disturb the next.
func TestOneEncoderForManyLists(t *testing.T) {
	var e WordEncoder
	var d WordDecoder
	for i, different := range []int{1000, 3, 1 << 30, 2000, 700, 2048, 5000, 1} {
		body := frame(40_000, random(different))
		out, ok := e.Append(nil, body)
		if !ok {
			if different <= 1000 {
				t.Errorf("list %d of %d different words is not encoded", i, different)
			}
			continue
		}
		if got, _, err := d.Decode(out); err != nil || !bytes.Equal(got, body) {
			t.Errorf("list %d comes back differently, %v", i, err)
		}
	}
}

func FuzzWordlistDecode(f *testing.F) {
	var e WordEncoder
	for _, value := range []func(int) float32{mixed(0.5, 100), random(9), mixed(0.5, 1<<30), gradient(60)} {
		if out, ok := e.Append(nil, frame(100, value)); ok {
			f.Add(out)
		}
	}
	f.Add([]byte{hasPalette, 0xff, 0xff, 0x0f, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, src []byte) {
		var d WordDecoder
		body, rest, err := d.Decode(src)
		switch {
		case err != nil && !errors.Is(err, ErrCorruptWords):
			t.Errorf("%v is not ErrCorrupt", err)
		case err == nil && (len(body) > MostWords || len(body)%wordSize != 0 || len(rest) >= len(src)):
			t.Errorf("%d bytes of body, %d left of %d", len(body), len(rest), len(src))
		}
	})
}

func benchmark(b *testing.B, value func(int) float32) {
	body := frame(16384, value)
	var e WordEncoder
	var d WordDecoder
	out, ok := e.Append(nil, body)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		room := make([]byte, 0, len(body))
		for b.Loop() {
			e.Append(room, body)
		}
	})
	if !ok {
		return
	}
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := d.Decode(out); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkDifferent(b *testing.B) { benchmark(b, random(1<<30)) }
func BenchmarkZeros(b *testing.B)     { benchmark(b, mixed(0.5, 1<<30)) }
func BenchmarkFew(b *testing.B)       { benchmark(b, random(250)) }
