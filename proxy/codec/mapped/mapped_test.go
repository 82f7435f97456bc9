package mapped

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// model is what a file should hold: numbers by the extent's tag.
type model map[uint64][]uint32

func (m model) copy() model {
	c := model{}
	for k, v := range m {
		c[k] = slices.Clone(v)
	}
	return c
}

func (m model) equal(o model) bool { return maps.EqualFunc(m, o, slices.Equal[[]uint32]) }

const kindNumbers, kindNote Kind = 1, 2

func read(path string) (model, error) {
	l, err := Open(path)
	if err != nil {
		return nil, err
	}
	m := model{}
	for _, p := range l.All {
		if m[p.Tag.A] != nil {
			return nil, fmt.Errorf("two extents with tag %d", p.Tag.A)
		}
		m[p.Tag.A] = slices.Clone(asWords[uint32](p.Bytes))
	}
	return m, l.Close()
}

// A process is killed between any two of its stores: the file has what the last
// commit covers, and nothing else.
func TestKilledAnywhere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	r := rand.New(rand.NewPCG(1, 2))
	f, err := Create(path, Options{Name: []byte("a worker")})
	if err != nil {
		t.Fatal(err)
	}
	committed, now := model{}, model{}
	extents := map[uint64]*Extent{}
	kills, copied := 0, filepath.Join(dir, "copy")
	kill := func() {
		kills++
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := read(copied)
		if err != nil {
			t.Fatal(err)
		}
		after, _ := unseal(getUint64(text[commitAt:]))
		want := committed
		if after == f.seq {
			want = now
		}
		if !found.equal(want) {
			t.Fatalf("after %d commits there is %v, want %v", after, found, want)
		}
	}
	f.opts.Stepped = func() {
		if r.IntN(4) == 0 {
			kill()
		}
	}
	next := uint64(0)
	for range 400 {
		for range 1 + r.IntN(4) {
			tags := slices.Sorted(maps.Keys(extents))
			switch k := r.IntN(10); {
			case k < 2 || len(tags) == 0:
				next++
				kind, n := kindNumbers, 1+r.IntN(300)
				if r.IntN(20) == 0 {
					n = 30_000
				}
				e, err := f.Alloc(kind, Tag{A: next, B: 7, C: 1, D: 2, E: 3, Sum: next}, 4*n)
				if err != nil {
					t.Fatal(err)
				}
				extents[next], now[next] = e, make([]uint32, n)
			case k < 4:
				tag := tags[r.IntN(len(tags))]
				f.Free(extents[tag])
				delete(extents, tag)
				delete(now, tag)
			case k < 7:
				tag := tags[r.IntN(len(tags))]
				numbers := asWords[uint32](extents[tag].Bytes())
				from := r.IntN(len(numbers))
				n := r.IntN(len(numbers) - from + 1)
				if err := f.Save(extents[tag], 4*from, 4*n); err != nil {
					t.Fatal(err)
				}
				for i := from; i < from+n; i++ {
					numbers[i] = r.Uint32()
				}
			default:
				tag := tags[r.IntN(len(tags))]
				numbers := asWords[uint32](extents[tag].Bytes())
				var at []uint32
				for i := range numbers {
					if r.IntN(len(numbers)) < 20 {
						at = append(at, uint32(i))
					}
				}
				if err := f.SaveAt(extents[tag], at, 4); err != nil {
					t.Fatal(err)
				}
				for _, i := range at {
					numbers[i] = r.Uint32()
				}
			}
			f.stepped()
		}
		for tag, e := range extents {
			copy(now[tag], asWords[uint32](e.Bytes()))
		}
		f.Commit()
		committed = now.copy()
	}
	if kills < 200 || len(f.segments) < 3 {
		t.Fatalf("%d kills, %d segments: too few to tell anything", kills, len(f.segments))
	}
	if _, err := Open(path); !errors.Is(err, ErrInUse) {
		t.Fatalf("a file in use can be opened: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := read(path)
	if err != nil || !found.equal(committed) {
		t.Fatal("the file is not what it was when it was closed", err)
	}
}

// What is freed is used again: a file does not grow for ever.
func TestRoomIsUsedAgain(t *testing.T) {
	f, err := Create(filepath.Join(t.TempDir(), "file"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := rand.New(rand.NewPCG(3, 3))
	var kept []*Extent
	for range 20_000 {
		e, err := f.Alloc(kindNote, Tag{}, 1000+r.IntN(4000))
		if err != nil {
			t.Fatal(err)
		}
		if kept = append(kept, e); len(kept) > 100 {
			f.Free(kept[0])
			kept = kept[1:]
		}
		f.Commit()
	}
	if f.length() > 2<<20 {
		t.Errorf("%d bytes for 100 extents of 3000", f.length())
	}
}

// A bound, and a disk without room, are errors before anything is mapped.
func TestNoRoomIsAnErrorBeforeMapping(t *testing.T) {
	used := 0
	f, err := Create(filepath.Join(t.TempDir(), "file"), Options{
		Take: func(n int) bool {
			if used+n > 1<<20 {
				return false
			}
			used += n
			return true
		},
		Give: func(n int) { used -= n },
	})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Alloc(kindNumbers, Tag{}, 100<<10)
	}
	if used > 1<<20 || used < 800<<10 {
		t.Errorf("%d bytes are used of %d", used, 1<<20)
	}
	f.Commit()
	if err := f.Remove(); err != nil || used != 0 {
		t.Errorf("%v; %d bytes are in use after all", err, used)
	}
}

// A file that is cut off or changed where there are checksums is not believed.
func TestDamagedFileIsNotBelieved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := Create(path, Options{Name: []byte("a worker")})
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.Alloc(kindNumbers, Tag{A: 1}, 4000)
	if err != nil {
		t.Fatal(err)
	}
	f.Commit()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	try := func(what string, want error, bad []byte) {
		t.Helper()
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v; want %v", what, l, err, want)
		}
	}
	for _, n := range []int{0, 100, pageSize - 1, pageSize, pageSize + 5000} {
		try(fmt.Sprintf("cut to %d bytes", n), ErrDamaged, whole[:n])
	}
	flip := func(at int) []byte {
		bad := slices.Clone(whole)
		bad[at] ^= 4
		return bad
	}
	head := int(e.at)
	for _, at := range []int{0, 9, nameAt, crcAt, commitAt, segmentsAt, head, head + 8, head + 16, head + 33, head + 41, head + 72, head + 80} {
		try(fmt.Sprintf("byte %d", at), ErrDamaged, flip(at))
	}
	other := slices.Clone(whole)
	other[30] ^= 1
	putUint32(other[crcAt:], crcOf(other[:crcAt]))
	try("of another boot", ErrOtherBoot, other)
	try("whole", nil, whole)
}

// FuzzRead: no file makes reading fail otherwise than by an error.
func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "file")
	m, err := Create(path, Options{Name: []byte("x")})
	if err != nil {
		f.Fatal(err)
	}
	e, err := m.Alloc(kindNumbers, Tag{A: 1}, 400)
	if err != nil {
		f.Fatal(err)
	}
	m.Commit()
	if err := m.SaveAt(e, []uint32{1, 5, 9}, 4); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[pageSize:pageSize+3000], uint64(1))
	f.Fuzz(func(_ *testing.T, extents []byte, commit uint64) {
		text := append(slices.Clone(whole[:pageSize]), make([]byte, (len(extents)+7)&^7)...)
		copy(text[pageSize:], extents)
		clear(text[segmentsAt:pageSize])
		putUint64(text[segmentsAt:], seal(uint64(len(text))))
		putUint64(text[commitAt:], seal(commit&(1<<40-1)))
		if err := new(Left).read(text); err != nil && !errors.Is(err, ErrDamaged) {
			panic(err)
		}
	})
}
