package spare

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// rememberedBy returns the timestamps that a store remembers, by worker, ascending.
func rememberedBy(s *Store) map[int32][]int32 {
	all := map[int32][]int32{}
	for w, r := range s.rings {
		for i := range r.length() {
			all[w] = append(all[w], int32(r.at(i)))
		}
		slices.Sort(all[w])
	}
	return all
}

// timestamp returns that of a worker's ask.
func timestamp(asks []Ask, worker int32) int32 {
	return asks[slices.IndexFunc(asks, func(a Ask) bool { return a.Worker == worker })].Timestamp
}

// A process is killed between any two of its stores, of a push or while it takes a store up: the next one finds
// the state before or after a whole push, whose repetition leads to that after it.
func TestKilledAnywhere(t *testing.T) {
	folder := t.TempDir()
	path, copied := filepath.Join(folder, "store"), filepath.Join(folder, "copy")
	r := rand.New(rand.NewPCG(1, 2))
	var asks []Ask
	var pieces []Piece
	var before, after map[uint64][]byte // equal, if no push is under way
	noted := map[int32][]int32{}        // of all pushes before
	kills, appliedAtKill := 0, [2]int{}
	kill := func() {
		kills++
		for _, suffix := range []string{"", nextSuffix} {
			text, err := os.ReadFile(path + suffix)
			if os.IsNotExist(err) {
				continue
			}
			if err == nil {
				err = os.WriteFile(copied+suffix, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s := mustOpen(t, copied, StoreOptions{})
		defer func() {
			if err := s.Remove(); err != nil {
				t.Fatal(err)
			}
		}()
		found, applied := contents(s), s.countApplied(asks)
		want := before
		if applied > 0 {
			want = after
			appliedAtKill[1]++
		} else {
			appliedAtKill[0]++
		}
		remembered := rememberedBy(s)
		for w, past := range noted { // that of before the push
			if applied > 0 && slices.ContainsFunc(asks, func(a Ask) bool { return a.Worker == w }) {
				past = past[:len(past):len(past)]
				past = append(past, timestamp(asks, w))
			}
			if past = past[max(0, len(past)-Remembered):]; !slices.Equal(remembered[w], past) {
				t.Fatalf("of worker %d it remembers %d, want %d", w, len(remembered[w]), len(past))
			}
		}
		if applied != 0 && applied != len(asks) || !maps.EqualFunc(found, want, bytes.Equal) {
			t.Fatalf("with %d of %d asks there is %v, want %v", applied, len(asks), found, want)
		}
		if len(asks) == 0 {
			return
		}
		for range 2 {
			if err := s.Push(asks, Int32, pieces); err != nil {
				t.Fatal(err)
			}
			if found := contents(s); !maps.EqualFunc(found, after, bytes.Equal) {
				t.Fatalf("after a repetition there is %v, want %v", found, after)
			}
		}
	}
	o := StoreOptions{Limit: 300 << 10, Stepped: func() {
		if r.IntN(8) == 0 {
			kill()
		}
	}}
	s := mustOpen(t, path, StoreOptions{Limit: o.Limit})
	refused, sizes := 0, map[uint64]int{}
	last := int32(0)
	for range Remembered + 10 { // so that the next one takes another's place
		last++
		if err := s.Push([]Ask{{0, last}}, Int32, nil); err != nil {
			t.Fatal(err)
		}
		noted[0] = append(noted[0], last)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, o)
	for round := range 150 {
		if round%40 == 39 { // the next process takes it up
			asks = nil
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, path, o)
		}
		asks, pieces, after = nil, nil, maps.Clone(before)
		if after == nil {
			after = map[uint64][]byte{}
		}
		for w := range int32(1 + r.IntN(3)) {
			last++
			asks = append(asks, Ask{w, last})
		}
		for range 1 + r.IntN(4) {
			key := uint64(r.IntN(round/2 + 3))
			if sizes[key] == 0 {
				sizes[key] = 4 * (1 + r.IntN(1500))
			}
			value := make([]byte, sizes[key])
			value[r.IntN(len(value))] = byte(1 + r.IntN(255))
			pieces = append(pieces, Piece{key, value})
			if sum, ok := after[key]; ok {
				value = addSlowly(Int32, sum, value)
			}
			after[key] = value
		}
		err := s.Push(asks, Int32, pieces)
		if err != nil {
			refused++
			after, asks = before, nil
		}
		kill()
		before = after
		for _, a := range asks {
			noted[a.Worker] = append(noted[a.Worker], a.Timestamp)
		}
		asks = nil
	}
	if kills < 200 || refused == 0 || appliedAtKill[0] == 0 || appliedAtKill[1] < 100 {
		t.Fatalf("%d kills, %d pushes without room, %v kills before and after: too few to tell anything", kills, refused, appliedAtKill)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
