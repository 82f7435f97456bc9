package sparse

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// appendBits appends the low bits of v, the lowest first.
func appendBits(dst []bool, v uint64, width uint) []bool {
	for i := range width {
		dst = append(dst, v>>i&1 != 0)
	}
	return dst
}

// asWord is bits as a number, the first the lowest.
func asWord(all []bool) (word uint64) {
	for i, set := range all {
		if set {
			word |= 1 << i
		}
	}
	return word
}

func TestRiceFoursEqualsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.UintRange(0, 32).Draw(t, "low")
		value := rapid.OneOf(rapid.Uint64Range(0, 8<<low), rapid.Uint64Range(0, 1<<60-1), rapid.Uint64Range(0, 70<<low))
		values := rapid.SliceOfN(value, 0, 70).Draw(t, "values")
		values = values[:len(values)&^3]
		codes, widths := slices.Repeat([]uint64{77}, len(values)/4), make([]uint64, len(values)/4)
		riceFours(codes, widths, values, low)
		for i := range codes {
			var all []bool
			wide := uint64(0)
			for _, v := range values[4*i : 4*i+4] {
				wide += v>>low + 1 + uint64(low)
				all = append(all, make([]bool, min(v>>low, 99))...)
				all = appendBits(append(all, true), v, low)
			}
			if widths[i] != wide || wide <= 64 && codes[i] != asWord(all) {
				t.Fatalf("%d, %d low bits: %d bits, %x; want %d, %x", values[4*i:4*i+4], low, widths[i], codes[i], wide, asWord(all))
			}
		}
	})
}

func TestRiceTwosEqualsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low, rest := rapid.UintRange(0, 2).Draw(t, "low"), rapid.SampledFrom([]uint{8, 11, 24, 53}).Draw(t, "rest")
		base, down := uint64(100), rapid.SampledFrom([]uint64{0, ^uint64(0)}).Draw(t, "down")
		var values []uint64
		for _, v := range rapid.SliceOfN(rapid.Uint64(), 0, 70).Draw(t, "values") {
			e := base + v>>58
			if down != 0 {
				e = base - v>>58
			}
			values = append(values, e<<rest|v&(1<<rest-1))
		}
		values = values[:len(values)&^1]
		codes, widths := slices.Repeat([]uint64{77}, len(values)/2), make([]uint64, len(values)/2)
		riceTwos(codes, widths, values, base, down, rest, low)
		for i := range codes {
			var all []bool
			wide := uint64(0)
			for _, v := range values[2*i : 2*i+2] {
				e := v>>rest - base
				if down != 0 {
					e = base - v>>rest
				}
				wide += e>>low + 1 + uint64(low+rest)
				all = append(all, make([]bool, e>>low)...)
				all = appendBits(appendBits(append(all, true), e, low), v, rest)
			}
			if widths[i] != wide || wide <= 64 && codes[i] != asWord(all) {
				t.Fatalf("%x, %d low bits, %d others: %d bits, %x; want %d, %x", values[2*i:2*i+2], low, rest, widths[i], codes[i], wide, asWord(all))
			}
		}
	})
}

func TestHalvings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rest := rapid.SampledFrom([]uint{8, 11, 24, 53}).Draw(t, "rest")
		exponents := rapid.SliceOfN(rapid.Uint64Range(0, 2047), 1, 70).Draw(t, "exponents")
		least, most := slices.Min(exponents), slices.Max(exponents)
		var values []uint64
		var wantUp, wantDown [3]uint64
		for i, e := range exponents {
			values = append(values, e<<rest|uint64(i)%(1<<rest))
			for r := range wantUp {
				wantUp[r] += (e - least) >> r
				wantDown[r] += (most - e) >> r
			}
		}
		if up, down := halvings(values, least, most, rest); up != wantUp || down != wantDown {
			t.Fatalf("%d: %v and %v, want %v and %v", exponents, up, down, wantUp, wantDown)
		}
	})
}

func TestFixedFoursEqualsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rest := rapid.UintRange(0, 16).Draw(t, "rest")
		param := rapid.UintRange(0, 16-rest).Draw(t, "param")
		base := rapid.Uint64Range(0, 1<<20).Draw(t, "base") << rest
		values := rapid.SliceOfN(rapid.Uint64Range(0, 1<<(rest+param)-1), 0, 70).Draw(t, "values")
		values = values[:len(values)&^3]
		codes := slices.Repeat([]uint64{77}, len(values)/4)
		for i := range values {
			values[i] += base
		}
		fixedFours(codes, values, base, rest, param)
		for i := range codes {
			var all []bool
			for _, v := range values[4*i : 4*i+4] {
				all = appendBits(appendBits(all, (v-base)>>rest, param), v, rest)
			}
			if codes[i] != asWord(all) {
				t.Fatalf("%x, base %x, %d and %d bits: %x, want %x", values[4*i:4*i+4], base, param, rest, codes[i], asWord(all))
			}
		}
	})
}

func TestRotate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		src := rapid.SliceOfN(rapid.Byte(), kind.Size(), 30*kind.Size()).Draw(t, "src")
		got := make([]uint64, len(src)/kind.Size())
		want := slices.Clone(got)
		for i := range want {
			switch at := src[i*kind.Size():]; kind.Size() {
			case 2:
				want[i] = uint64(bits.RotateLeft16(binary.LittleEndian.Uint16(at), 1))
			case 4:
				want[i] = uint64(bits.RotateLeft32(binary.LittleEndian.Uint32(at), 1))
			default:
				want[i] = bits.RotateLeft64(binary.LittleEndian.Uint64(at), 1)
			}
		}
		least, most := rotate(kind, got, src)
		if !slices.Equal(got, want) || least != slices.Min(want) || most != slices.Max(want) {
			t.Fatalf("%v: %x from %x to %x, want %x", kind, got, least, most, want)
		}
	})
}
