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

	"github.com/psidecar/psidecar/test/require"
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
	f := require.Value(Create(path, Options{Name: []byte("a worker")}))(t)
	committed, now := model{}, model{}
	extents := map[uint64]*Extent{}
	kills, copied := 0, filepath.Join(dir, "copy")
	kill := func() {
		kills++
		text := require.Value(os.ReadFile(path))(t)
		require.NoError(t, os.WriteFile(copied, text, 0o600))
		found := require.Value(read(copied))(t)
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
				e := require.Value(f.Alloc(kind, Tag{A: next, B: 7, C: 1, D: 2, E: 3, Sum: next}, 4*n))(t)
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
				require.NoError(t, f.Save(extents[tag], 4*from, 4*n))
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
				require.NoError(t, f.SaveAt(extents[tag], at, 4))
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
	require.NoError(t, f.Close())
	found, err := read(path)
	if err != nil || !found.equal(committed) {
		t.Fatal("the file is not what it was when it was closed", err)
	}
}

// What is freed is used again: a file does not grow for ever.
func TestRoomIsUsedAgain(t *testing.T) {
	f := require.Value(Create(filepath.Join(t.TempDir(), "file"), Options{}))(t)
	defer f.Close()
	r := rand.New(rand.NewPCG(3, 3))
	var kept []*Extent
	for range 20_000 {
		e := require.Value(f.Alloc(kindNote, Tag{}, 1000+r.IntN(4000)))(t)
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
	require.NoError(t, err)
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
	f := require.Value(Create(path, Options{Name: []byte("a worker")}))(t)
	e := require.Value(f.Alloc(kindNumbers, Tag{A: 1}, 4000))(t)
	f.Commit()
	whole := require.Value(os.ReadFile(path))(t)
	require.NoError(t, f.Close())
	try := func(what string, want error, bad []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, bad, 0o600))
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
	m := require.Value(Create(path, Options{Name: []byte("x")}))(f)
	e := require.Value(m.Alloc(kindNumbers, Tag{A: 1}, 400))(f)
	m.Commit()
	require.NoError(f, m.SaveAt(e, []uint32{1, 5, 9}, 4))
	whole := require.Value(os.ReadFile(path))(f)
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
