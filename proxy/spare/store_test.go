package spare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var kinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16, Int8, Int16, Int32, Int64}

// numbers returns values of a kind.
func numbers(k element.Kind, vs ...int) []byte {
	size, _ := KindSize(k)
	b := make([]byte, size*len(vs))
	for i, v := range vs {
		switch {
		case k.Valid():
			k.Put(b, i, float64(v))
		default:
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], uint64(v))
			copy(b[i*size:], word[:size])
		}
	}
	return b
}

// addSlowly is the sum of two values, number by number.
func addSlowly(k element.Kind, a, b []byte) []byte {
	size, _ := KindSize(k)
	sum := make([]byte, len(a))
	for i := range len(a) / size {
		switch {
		case k == element.Float32: // not rounded through float64
			x, y := binary.LittleEndian.Uint32(a[4*i:]), binary.LittleEndian.Uint32(b[4*i:])
			binary.LittleEndian.PutUint32(sum[4*i:], math.Float32bits(math.Float32frombits(x)+math.Float32frombits(y)))
		case k.Valid():
			k.Put(sum, i, k.At(a, i)+k.At(b, i))
		default:
			carry := 0
			for j := i * size; j < (i+1)*size; j++ {
				carry += int(a[j]) + int(b[j])
				sum[j] = byte(carry)
				carry >>= 8
			}
		}
	}
	return sum
}

func mustOpen(t rapid.TB, path string, o StoreOptions) *Store {
	t.Helper()
	s, err := OpenStore(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents returns all values of a store.
func contents(s *Store) map[uint64][]byte {
	all := map[uint64][]byte{}
	for key := range s.values {
		value, _ := s.Pull(key)
		all[key] = bytes.Clone(value)
	}
	return all
}

// A store does what a map of values and a list of asks do.
func TestStoreAgainstMap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	rapid.Check(t, func(t *rapid.T) {
		o := StoreOptions{Name: []byte("a job"), Limit: rapid.SampledFrom([]int64{0, 256 << 10, 2 << 20}).Draw(t, "limit")}
		s := mustOpen(t, path, o)
		defer func() {
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Error("the store is there after Remove")
			}
		}()
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		size, _ := KindSize(kind)
		values, asks := map[uint64][]byte{}, map[Ask]bool{}
		var past [][]Ask
		next := int32(0)
		check := func() {
			if got := contents(s); !maps.EqualFunc(got, values, bytes.Equal) {
				t.Fatalf("the store has %v, want %v", got, values)
			}
		}
		piece := rapid.Custom(func(t *rapid.T) Piece {
			key := rapid.Uint64Range(0, 9).Draw(t, "key")
			n := rapid.SampledFrom([]int{0, 1, 3, 40, 5_000}).Draw(t, "n")
			if v, ok := values[key]; ok && rapid.IntRange(0, 9).Draw(t, "other length") > 0 {
				n = len(v) / size
			}
			b := make([]byte, n*size)
			seed := rapid.Uint64().Draw(t, "seed")
			for i := range b {
				b[i] = byte(seed >> (i % 57))
			}
			if kind.Valid() { // small numbers: sums of NaN have bits that are not specified
				for i := range n {
					kind.Put(b, i, float64(int8(b[i*size])))
				}
			}
			return Piece{key, b}
		})
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {},
			"push": func(t *rapid.T) {
				var who []Ask
				for w := range rapid.Int32Range(1, 3).Draw(t, "workers") {
					next++
					who = append(who, Ask{w, next})
				}
				repeated := 0
				if len(past) > 0 && rapid.IntRange(0, 3).Draw(t, "repeat") == 0 {
					who = slices.Clone(rapid.SampledFrom(past).Draw(t, "which"))
					if rapid.Bool().Draw(t, "and one more") {
						next++
						who = append(who, Ask{100, next})
					}
				}
				for _, a := range who {
					if asks[a] {
						repeated++
					}
				}
				pieces := rapid.SliceOfN(piece, 0, 3).Draw(t, "pieces")
				want := maps.Clone(values)
				fits := true
				for _, p := range pieces {
					switch v, ok := want[p.Key]; {
					case !ok:
						want[p.Key] = p.Value
					case len(v) != len(p.Value):
						fits = false
					default:
						want[p.Key] = addSlowly(kind, v, p.Value)
					}
				}
				err := s.Push(who, kind, pieces)
				switch {
				case repeated == len(who):
					if err != nil {
						t.Fatalf("a repetition: %v", err)
					}
				case repeated > 0 || !fits:
					if err == nil {
						t.Fatalf("%d of %d asks are repeated, lengths fit: %v, and there is no error", repeated, len(who), fits)
					}
				case errors.Is(err, ErrNoRoom) && o.Limit > 0 && len(want) > len(values):
				case err != nil:
					t.Fatal(err)
				default:
					values = want
					past = append(past, who)
					for _, a := range who {
						asks[a] = true
					}
				}
				check()
				st, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				// A step beyond the limit at most, and the log of the largest push.
				if most := o.Limit + o.Limit/4 + leastGrowth + 16*3*5_000*8; o.Limit > 0 && st.Size() > most {
					t.Fatalf("%d bytes with a limit of %d", st.Size(), o.Limit)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s = mustOpen(t, path, o); s.IsNew() {
					t.Fatal("the store is new")
				}
				check()
			},
		})
	})
}

// The first value stays as it is, bit by bit, and is not a sum with zero.
func TestFirstValueKeepsItsBits(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer s.Close()
	want := binary.LittleEndian.AppendUint32(nil, 1<<31) // -0
	want = binary.LittleEndian.AppendUint32(want, 0x7fa12345)
	if err := s.Push([]Ask{{1, 1}}, element.Float32, []Piece{{7, want}}); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Pull(7); !ok || !bytes.Equal(got, want) {
		t.Errorf("there is % x, want % x", got, want)
	}
	if _, ok := s.Pull(8); ok {
		t.Error("a key is there that was not pushed")
	}
}

// Sums are those of package aggregate: 16 bits saturate, integers wrap around.
func TestSumsSaturateOrWrap(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer s.Close()
	for i, tc := range []struct {
		kind    element.Kind
		a, want []byte
	}{
		{element.Float16, numbers(element.Float16, 65504, -60000), numbers(element.Float16, 65504, -65504)},
		{Int8, []byte{0x7f, 0xff}, []byte{0xfe, 0xfe}},
		{Int64, numbers(Int64, math.MaxInt64), numbers(Int64, -2)},
	} {
		for range 2 {
			if err := s.Push([]Ask{{0, int32(s.countOf(0))}}, tc.kind, []Piece{{uint64(i), tc.a}}); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := s.Pull(uint64(i)); !bytes.Equal(got, tc.want) {
			t.Errorf("%v: % x, want % x", tc.kind, got, tc.want)
		}
	}
}

func (s *Store) countOf(worker int32) uint64 {
	if r := s.rings[worker]; r != nil {
		return r.count
	}
	return 0
}

// The last pushes of a worker are remembered, as many as promised and no fewer, over a wrap of
// timestamps and the next process.
func TestPushesAreRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, path, StoreOptions{})
	const pushes, wrap = Remembered + 3000, 10_000
	push := func(i int) {
		t.Helper()
		if err := s.Push([]Ask{{-3, int32(i % wrap)}}, Int64, []Piece{{1, numbers(Int64, 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range pushes {
		push(i)
	}
	for range 2 {
		for i := pushes - Remembered; i < pushes; i++ {
			push(i)
		}
		if got, _ := s.Pull(1); !bytes.Equal(got, numbers(Int64, pushes)) {
			t.Fatalf("the sum is %v, want %d", got, pushes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, path, StoreOptions{})
	}
	push(pushes - Remembered - 1) // forgotten
	if got, _ := s.Pull(1); !bytes.Equal(got, numbers(Int64, pushes+1)) {
		t.Errorf("the sum is %v, want %d", got, pushes+1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPushesThatCannotBe(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer s.Close()
	for name, err := range map[string]error{
		"no asks":               s.Push(nil, Int8, nil),
		"two asks of a worker":  s.Push([]Ask{{1, 1}, {2, 1}, {1, 2}}, Int8, nil),
		"half a number":         s.Push([]Ask{{1, 1}}, Int16, []Piece{{1, make([]byte, 3)}}),
		"numbers of what kind?": s.Push([]Ask{{1, 1}}, 0x83, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if len(s.values) > 0 || len(s.rings) > 0 {
		t.Error("something was applied")
	}
}

// A store without room refuses what is new, and nothing else: each key that has found room can be
// pushed from then on, by whatever worker.
func TestFullStoreTakesWhatItHas(t *testing.T) {
	for _, n := range []int{2000, 5000, 100_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const limit = 3 << 20
			path := filepath.Join(t.TempDir(), "store")
			s := mustOpen(t, path, StoreOptions{Limit: limit})
			value := bytes.Repeat(numbers(Int32, 1), n/4)
			free, keys := s.Free(), 0
			if free <= limit/4 || free > limit {
				t.Fatalf("%d bytes are free of %d", free, limit)
			}
			timestamp := int32(0)
			push := func(key int) error {
				timestamp++
				return s.Push([]Ask{{timestamp % 400, timestamp}}, Int32, []Piece{{uint64(key), value}})
			}
			for {
				err := push(keys)
				if errors.Is(err, ErrNoRoom) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				keys++
			}
			if int64(keys*n) < free {
				t.Errorf("%d bytes were free, and there was no room after %d", free, keys*n)
			}
			if s.Free() >= int64(n) {
				t.Errorf("%d bytes are free in a full store", s.Free())
			}
			for round := range 1000 {
				if err := push(round % keys); err != nil {
					t.Fatalf("pushing key %d of %d again: %v", round%keys, keys, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, path, StoreOptions{Limit: limit})
			defer s.Close()
			if err := push(0); err != nil {
				t.Error("after it was opened again:", err)
			}
			if len(s.values) != keys {
				t.Errorf("%d keys are there, want %d", len(s.values), keys)
			}
		})
	}
}

func TestWorkersAreBounded(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer s.Close()
	asks := make([]Ask, MostWorkers+1)
	for i := range asks {
		asks[i].Worker = int32(i)
	}
	if err := s.Push(asks, Int8, []Piece{{1, []byte{1}}}); !errors.Is(err, ErrNoRoom) {
		t.Error("too many workers at once:", err)
	}
	if err := s.Push(asks[:MostWorkers], Int8, []Piece{{1, []byte{1}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Push(asks[MostWorkers:], Int8, []Piece{{1, []byte{1}}}); !errors.Is(err, ErrNoRoom) {
		t.Error("one worker more:", err)
	}
	if got, _ := s.Pull(1); !bytes.Equal(got, []byte{1}) {
		t.Errorf("there is %v, want 1", got)
	}
}

// A disk without room is an error, and the store goes on.
func TestFullDiskIsAnError(t *testing.T) {
	require.Root(t)
	folder := t.TempDir()
	if err := unix.Mount("none", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(folder, unix.MNT_DETACH)
	s := mustOpen(t, filepath.Join(folder, "store"), StoreOptions{})
	defer s.Close()
	if err := s.Push([]Ask{{1, 1}}, Int8, []Piece{{1, make([]byte, 1000)}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Push([]Ask{{1, 2}}, Int8, []Piece{{2, make([]byte, 1<<20)}}); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("a value as large as the disk: %v", err)
	}
	if err := s.Push([]Ask{{1, 2}}, Int8, []Piece{{1, bytes.Repeat([]byte{3}, 1000)}}); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Pull(1); !bytes.Equal(got, bytes.Repeat([]byte{3}, 1000)) {
		t.Error("the store does not go on")
	}
}

// Whatever keeps a store from being taken up is an error, and never an empty store.
func TestStoreIsNeverSilentlyNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	o := StoreOptions{Name: []byte("a job")}
	s := mustOpen(t, path, o)
	if !s.IsNew() {
		t.Error("the store is not new")
	}
	if err := s.Push([]Ask{{1, 1}}, Int8, []Piece{{1, []byte{5}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(path, o); !errors.Is(err, mapped.ErrInUse) {
		t.Errorf("a store in use: %v", err)
	}
	if err := RemoveStore(path); !errors.Is(err, mapped.ErrInUse) {
		t.Errorf("removing a store in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Push([]Ask{{1, 2}}, Int8, []Piece{{1, []byte{5}}}); err == nil {
		t.Error("a closed store takes pushes")
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, o StoreOptions, change func(b []byte) []byte, want error) {
		t.Helper()
		if err := os.WriteFile(path, change(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(path, o); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	same := func(b []byte) []byte { return b }
	try("another name", StoreOptions{Name: []byte("other")}, same, nil)
	try("cut off", o, func(b []byte) []byte { return b[:5000] }, mapped.ErrDamaged)
	try("another beginning", o, func(b []byte) []byte { b[3]++; return b }, mapped.ErrDamaged)
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, o)
	if got, _ := s.Pull(1); !bytes.Equal(got, []byte{5}) {
		t.Errorf("there is %v", got)
	}
	// Another process truncates the file: the values are lost, and this process is not.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendValue(nil, 1); !errors.Is(err, mapped.ErrDamaged) {
		t.Errorf("reading a truncated store: %v", err)
	}
	if err := s.Push([]Ask{{1, 2}}, Int8, []Piece{{1, []byte{5}}}); !errors.Is(err, mapped.ErrDamaged) {
		t.Errorf("pushing to a truncated store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(path, o); !errors.Is(err, mapped.ErrDamaged) {
		t.Errorf("opening a truncated store: %v", err)
	}
	if err := RemoveStore(path); err != nil {
		t.Fatal(err)
	}
	if s = mustOpen(t, path, o); !s.IsNew() {
		t.Error("the store is not new")
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
}
