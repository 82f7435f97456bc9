package keylist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// listOf is the body of a keys frame.
func listOf(keys ...uint64) []byte {
	var list []byte
	for _, key := range keys {
		list = binary.LittleEndian.AppendUint64(list, key)
	}
	return list
}

// smallLimits make every bound bite.
var smallLimits = Limits{TableBytes: 4096, TableLists: 5, DictionaryKeys: 3000, ListBytes: 1 << 20}

// pass sends a list over a link and checks that it arrives unchanged; it
// returns the size of its encoded form.
func pass(t interface {
	Helper()
	Fatalf(string, ...any)
}, e *Encoder, d *Decoder, list []byte) int {
	t.Helper()
	encoded := e.Append([]byte("before"), list)
	got, rest, err := d.Decode(append(encoded[6:len(encoded):len(encoded)], "after"...))
	if err != nil {
		t.Fatalf("a list of %d bytes: %v", len(list), err)
	}
	if !bytes.Equal(got, list) {
		t.Fatalf("a list of %d bytes arrived changed", len(list))
	}
	if string(rest) != "after" {
		t.Fatalf("what follows a list of %d bytes arrived as %q", len(list), rest)
	}
	return len(encoded) - 6
}

func TestForms(t *testing.T) {
	spread := make([]uint64, 1000)
	for i := range spread {
		spread[i] = uint64(i) * 5 * (math.MaxUint64 / 10007)
	}
	for _, tc := range []struct {
		name string
		list []byte
		most int // bytes of the encoded form
	}{
		{"nothing", nil, 2},
		{"one key", listOf(7), 4},
		{"the largest key", listOf(math.MaxUint64), 13},
		{"both ends", listOf(0, math.MaxUint64), 16},
		{"neighbours", listOf(1, 2, 3, 4, 5, 6, 7, 8), 6},
		{"spread with a common stride", listOf(spread...), 30},
		{"descending", listOf(3, 2, 1), 27},
		{"twice the same", listOf(3, 3), 19},
		{"no whole keys", []byte("seven b"), 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, d := NewEncoder(DefaultLimits, nil), NewDecoder(DefaultLimits, nil)
			if n := pass(t, e, d, tc.list); n > tc.most {
				t.Errorf("takes %d bytes, want at most %d", n, tc.most)
			}
			if n := pass(t, e, d, tc.list); n > 2 {
				t.Errorf("takes %d bytes the second time, want a reference of 2", n)
			}
		})
	}
}

// batches returns key lists as a sparse model on hashed features makes them:
// each of n keys, drawn by Zipf's law from a vocabulary of random keys.
func batches(seed uint64, vocabulary, lists, n int) [][]byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	words := make([]uint64, vocabulary)
	for i := range words {
		words[i] = rng.Uint64()
	}
	zipf := rand.NewZipf(rng, 1.1, 20, uint64(vocabulary-1))
	out := make([][]byte, lists)
	for i := range out {
		keys := make([]uint64, n)
		for j := range keys {
			keys[j] = words[zipf.Uint64()]
		}
		slices.Sort(keys)
		out[i] = listOf(slices.Compact(keys)...)
	}
	return out
}

// Hashed keys, once known, take a byte or so, not eight.
func TestHashedKeysPackByPosition(t *testing.T) {
	e, d := NewEncoder(DefaultLimits, nil), NewDecoder(DefaultLimits, nil)
	var plain, packed int
	for i, list := range batches(1, 20000, 200, 5000) {
		n := pass(t, e, d, list)
		if i >= 100 {
			plain += len(list)
			packed += n
		}
	}
	if ratio := float64(plain) / float64(packed); ratio < 6 {
		t.Errorf("the last 100 lists take 1/%.1f of their size, want at most 1/6", ratio)
	}
}

func TestTwoEndsAgreeUnderTightBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, d := NewEncoder(smallLimits, nil), NewDecoder(smallLimits, nil)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		var lists [][]byte
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			list := drawList(t, rng)
			if len(lists) > 0 && rng.IntN(3) == 0 {
				list = lists[rng.IntN(len(lists))]
			}
			lists = append(lists, list)
			pass(t, e, d, list)
			checkBounds(t, e, d)
		}
	})
}

// drawList draws a list of one of the kinds that jobs send.
func drawList(t *rapid.T, rng *rand.Rand) []byte {
	n := rapid.IntRange(0, 700).Draw(t, "n")
	bits := rapid.IntRange(1, 64).Draw(t, "bits")
	stride := rapid.SampledFrom([]uint64{1, 1, 2, 12, 1000003}).Draw(t, "stride")
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = rng.Uint64() >> (64 - bits) * stride
	}
	if rng.IntN(8) > 0 {
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	list := listOf(keys...)
	if rng.IntN(20) == 0 {
		list = append(list, 1, 2, 3)
	}
	return list
}

func checkBounds(t *rapid.T, e *Encoder, d *Decoder) {
	for _, table := range []*table{&e.table, &d.table} {
		held := 0
		for s := table.oldest; s < table.kept; s++ {
			held += len(table.list(s))
		}
		if held != table.bytes || held > smallLimits.TableBytes || table.kept-table.oldest > uint64(smallLimits.TableLists) {
			t.Fatalf("the table holds %d bytes (counted: %d) in %d lists", held, table.bytes, table.kept-table.oldest)
		}
	}
	if len(e.finder.serials) > 2*smallLimits.TableLists {
		t.Fatalf("the finder holds %d lists", len(e.finder.serials))
	}
	if !slices.Equal(e.dictionary.keys, d.dictionary.keys) || !slices.Equal(e.dictionary.waiting, d.dictionary.waiting) {
		t.Fatalf("the dictionaries differ")
	}
	if n := len(d.dictionary.keys) + len(d.dictionary.waiting); n > smallLimits.DictionaryKeys {
		t.Fatalf("the dictionary holds %d keys", n)
	}
	if !slices.IsSorted(d.dictionary.keys) {
		t.Fatalf("the dictionary is not sorted")
	}
}

// A job whose keys change altogether gets a new dictionary.
func TestDictionaryIsReplacedWhenItNoLongerHelps(t *testing.T) {
	limits := Limits{TableBytes: 1 << 20, TableLists: 16, DictionaryKeys: 5000, ListBytes: 1 << 20}
	e, d := NewEncoder(limits, nil), NewDecoder(limits, nil)
	for _, list := range batches(1, 4000, 50, 1000) {
		pass(t, e, d, list)
	}
	last := 0
	for _, list := range batches(2, 4000, 50, 1000) {
		last = pass(t, e, d, list) * keySize / count(list)
	}
	if last > 2*keySize {
		t.Errorf("a key takes %d/8 bytes at the end, want at most 2", last)
	}
}

func TestSeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 200), 0, 100, func(v uint64) uint64 { return v }).Draw(t, "keys")
		slices.Sort(keys)
		key := rapid.Uint64Range(0, 210).Draw(t, "key")
		want, _ := slices.BinarySearch(keys, key)
		if got := seek(keys, key); got != want {
			t.Fatalf("seek(%v, %d) = %d, want %d", keys, key, got, want)
		}
	})
}

func TestBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for width := 0; width <= 64; width++ {
		for _, n := range []int{1, 2, 7, 8, 63, 127, 128} {
			values := make([]uint64, n)
			for i := range values {
				values[i] = rng.Uint64() >> (64 - width)
			}
			packed := appendBlock(nil, values)
			got := make([]uint64, n)
			rest, err := readBlock(append(packed, 0xaa), got)
			if err != nil || len(rest) != 1 || !slices.Equal(got, values) {
				t.Fatalf("%d values of %d bits: %v, %d bytes left, want %v got %v", n, width, err, len(rest), values, got)
			}
			if _, err := readBlock(packed[:len(packed)-1], got); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%d values of %d bits, cut: %v", n, width, err)
			}
		}
	}
}

func TestCorruptInput(t *testing.T) {
	for _, tc := range []struct {
		name string
		src  []byte
	}{
		{"nothing", nil},
		{"unknown form", []byte{9}},
		{"unknown flag", []byte{0x80}},
		{"reference into an empty table", []byte{1, 0}},
		{"reference with a flag", []byte{0x11, 0}},
		{"raw beyond the end", []byte{0, 200, 1}},
		{"raw of 2^63 bytes", []byte{0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}},
		{"2^60 keys", []byte{2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 1, 0}},
		{"stride 0", []byte{2, 2, 1, 0, 0}},
		{"width 65", []byte{2, 2, 1, 1, 65}},
		{"a key beyond 64 bits", append([]byte{2, 2}, append(binary.AppendUvarint(nil, math.MaxUint64), 1, 0)...)},
		{"a position in an empty dictionary", []byte{3, 1, 0, 0}},
		{"reset with raw", []byte{0x40, 0}},
		{"ends early", []byte{2, 3, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := NewDecoder(smallLimits, nil).Decode(tc.src); !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v, want ErrCorrupt", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	e := NewEncoder(smallLimits, nil)
	var stream []byte
	for i, list := range batches(3, 500, 12, 100) {
		stream = e.Append(stream, list)
		if i%3 == 0 {
			stream = e.Append(stream, list)
		}
	}
	f.Add(stream)
	f.Add(NewEncoder(smallLimits, nil).Append(nil, listOf(1, 5, 9, 13)))
	f.Fuzz(func(t *testing.T, src []byte) {
		d := NewDecoder(smallLimits, nil)
		for len(src) > 0 {
			list, rest, err := d.Decode(src)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("an error without ErrCorrupt: %v", err)
				}
				return
			}
			if len(list) > smallLimits.ListBytes || len(rest) >= len(src) {
				t.Fatalf("%d bytes decoded, %d of %d bytes left", len(list), len(rest), len(src))
			}
			src = rest
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add(listOf(1, 2, 3), listOf(2, 3, 4))
	f.Add([]byte{}, listOf(math.MaxUint64))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		e, d := NewEncoder(smallLimits, nil), NewDecoder(smallLimits, nil)
		for _, list := range [][]byte{a, b, a} {
			pass(t, e, d, list)
		}
	})
}
